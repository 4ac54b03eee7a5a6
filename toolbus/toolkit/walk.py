"""Walk through the graph: an agent moves from action to action as it calls their tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice

from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.graph import Toolkit, check_score
from toolbus.toolkit.items import Action, Tool, ToolGroup
from toolbus.toolkit.learning.recorder import Episode, Place, Recorder
from toolbus.toolkit.learning.records import MAX_SHOWN
from toolbus.toolkit.live import ActionView, Merged, for_actions, published
from toolbus.toolkit.presets import LiveGroup
from toolbus.toolkit.recommend import Explorer


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
        recorder: records the calls that are made within ``recording()``, as agents with a walk do, to learn scores from them.
        explore: probability, from 0 to 1, that a tool below the threshold is shown all the same throughout an episode, so that its
            score can rise.

    Raises:
        ToolkitError: the threshold or ``explore`` is not within 0 and 1, or hops is no whole number from 0.
    """

    def __init__(
        self,
        tools: ToolView,
        starts: Iterable[str],
        *,
        threshold: float = 0.5,
        hops: int = 1,
        toolkit: Toolkit | None = None,
        recorder: Recorder | None = None,
        explore: float = 0.0,
    ) -> None:
        check_score(explore, "explore")
        self._tools = tools
        self._threshold = threshold
        self._hops = hops
        self._toolkit = toolkit
        self._recorder = recorder
        self._explore = explore
        self._explorer: Explorer | None = None
        self.at = tuple(starts)
        self._view = self._current_view()

    @property
    def view(self) -> ActionView:
        """The tools and actions for the current position, by the graph and the tools of the moment."""
        self._view = self._current_view()
        return self._view

    def after(self, called: Iterable[str]) -> None:
        """Move the agent after it called these tools of the bus."""
        moved = {action: None for name in called for action, _ in self._edges(name)}
        if moved:
            self.at = tuple(action.id for action in self._view.actions if action.id in moved)

    @contextmanager
    def recording(self, question: str = "") -> Iterator[None]:
        """Record the calls that start within this ``with`` as one episode; ``Agent`` does so for each question.

        The tools below the threshold that are shown in it are chosen here, also without a recorder.

        Raises:
            ConfigurationError: the recorder is not running.
        """
        episode = Episode(new_id(), question) if self._recorder is None else self._recorder.episode(question)
        if self._recorder is not None and not self._recorder.running:
            raise ConfigurationError("the walk's recorder is not running: use `with recorder:` around the agent")
        self._explorer = Explorer(self._explore, episode.id) if self._explore else None
        with nullcontext() if self._recorder is None else episode.located(self._place):
            yield

    def _place(self, tool: str) -> Place | None:
        """Return the place of a call of a tool: the current action that calls it, or else the nearest one."""
        edges = self._edges(tool)
        if not edges:
            return None
        view = self._view
        action, target = min(edges, key=lambda edge: edge[0] not in view.starts)
        shown: dict[str, float] = {}
        following: dict[str, float] = {}
        for vertex in view.toolkit.successors(action):
            if isinstance(view.toolkit.item(vertex), Action):
                following[vertex] = 1.0
            elif vertex == target or self._is_shown(vertex):
                shown[vertex] = self._explore if (action, vertex) in view.explored else 1.0
        graph = published(self._tools.catalogue) if self._toolkit is None else self._toolkit
        revision = graph.revision if isinstance(graph, Merged) else ""
        return Place(action, target, _first(shown, target), _first(following, ""), revision)

    def _current_view(self) -> ActionView:
        return for_actions(
            self._tools,
            self.at,
            threshold=self._threshold,
            hops=self._hops,
            toolkit=self._toolkit,
            tell_missing=True,
            explorer=self._explorer,
        )

    def _is_shown(self, vertex: str) -> bool:
        """Return whether the model is shown a tool, or any tool of a group."""
        item = self._view.toolkit.item(vertex)
        if isinstance(item, LiveGroup) and any(item.holds(tool) for tool in self._view.values()):
            return True
        members = [vertex] if isinstance(item, Tool) else self._view.toolkit.successors(vertex)
        found = [self._view.toolkit.item(member) for member in members]
        return any(isinstance(tool, Tool) and tool.bus_name in self._view for tool in found)

    def _edges(self, tool: str) -> list[tuple[str, str]]:
        """Return the visible edges, from an action to a tool or group, by which a tool of the bus can be called, the nearest first."""
        part = self._view.toolkit
        edges: list[tuple[str, str]] = []
        for action in self._view.actions:
            groups: list[tuple[str, str]] = []
            for target in part.successors(action.id):
                item = part.item(target)
                if isinstance(item, Tool) and item.bus_name == tool:
                    edges.append((action.id, target))
                elif isinstance(item, ToolGroup) and self._holds(item, target, tool):
                    groups.append((action.id, target))
            edges += groups
        return edges

    def _holds(self, group: ToolGroup, vertex: str, tool: str) -> bool:
        """Return whether a tool of the bus is in a group."""
        live, part = self._view.get(tool), self._view.toolkit
        if isinstance(group, LiveGroup) and live is not None and group.holds(live):
            return True
        return any(isinstance(item, Tool) and item.bus_name == tool for item in map(part.item, part.successors(vertex)))


def _first(shown: dict[str, float], needed: str) -> dict[str, float]:
    """Return as many entries as a record may have, with the needed one."""
    kept = dict(islice(shown.items(), MAX_SHOWN - 1))
    return {**kept, needed: shown[needed]} if needed in shown else kept
