"""Walk through the graph: an agent moves from action to action as it calls their tools."""

from __future__ import annotations

from collections.abc import Iterable

from toolbus.client.tools.view import ToolView
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action
from toolbus.toolkit.live import ActionView, for_actions
from toolbus.toolkit.presets import LiveGroup


class Walk:
    """An agent's position in the graph, and the tools that it sees there.

    After a turn the agent is at the actions whose tools it called, and also sees what follows them within ``hops``. A call of a
    tool that belongs to no visible action does not move it.

    Attributes:
        at: ids or names of the current actions.

    Args:
        tools: ``bus.tools`` or a view of a part of it.
        starts: ids or names of the first actions.
        threshold: lowest score of an edge that is followed, from 0 to 1.
        hops: how many edges to next actions are followed; 1 shows the next actions.
        toolkit: a graph to use instead of the published one.
    """

    def __init__(
        self, tools: ToolView, starts: Iterable[str], *, threshold: float = 0.5, hops: int = 1, toolkit: Toolkit | None = None
    ) -> None:
        self._tools = tools
        self._threshold = threshold
        self._hops = hops
        self._toolkit = toolkit
        self.at = tuple(starts)
        self._view = self._current_view()

    @property
    def view(self) -> ActionView:
        """The tools and actions for the current position, by the graph and the tools of the moment."""
        self._view = self._current_view()
        return self._view

    def after(self, called: Iterable[str]) -> None:
        """Move the agent after it called these tools of the bus."""
        names = set(called)
        moved = [action.id for action in self._view.actions if self._calls(action, names)]
        if moved:
            self.at = tuple(moved)

    def _current_view(self) -> ActionView:
        return for_actions(self._tools, self.at, threshold=self._threshold, hops=self._hops, toolkit=self._toolkit, tell_missing=True)

    def _calls(self, action: Action, names: set[str]) -> bool:
        part = self._view.toolkit
        reached = part.successors(action.id)
        reached += [tool for group in reached if not isinstance(part.item(group), Action) for tool in part.successors(group)]
        for vertex in reached:
            item = part.item(vertex)
            if isinstance(item, LiveGroup):
                live = (self._view.get(name) for name in names)
                if any(tool is not None and item.holds(tool) for tool in live):
                    return True
            elif getattr(item, "bus_name", "") in names:
                return True
        return False
