"""``ToolkitService``: build one toolkit graph and recommend from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from toolbus.bus import telemetry
from toolbus.bus.values.results import ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.toolkit.graph import Toolkit, check_score
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup, a, kind_of
from toolbus.toolkit.recommend import recommend_subgraph, recommend_tools_actions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scored = tuple[Action, float]
"""An action, and the score of an edge from it or to it."""


class ToolkitService:
    """Adds and removes actions, tools and groups with their edges, and recommends from the graph.

    Args:
        toolkit: the graph to work on; a new one when left out.
    """

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        self._toolkit = Toolkit() if toolkit is None else toolkit
        # Actions whose next action is not in the graph yet, by that action's id.
        self._awaited: dict[str, list[str]] = {}

    def get_toolkit(self) -> Toolkit:
        """Return the graph itself."""
        return self._toolkit

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools of the graph that run in this process, for a worker of the module that holds the service."""
        return self._toolkit.__toolbus_tools__()

    # -- adding -----------------------------------------------------------------------------------

    def add_action(self, action: Action, next_actions: Sequence[Scored] = (), prev_actions: Sequence[Scored] = ()) -> None:
        """Add an action, unless it is in the graph, with its Next edges; a score for an existing edge replaces the edge's score.

        The actions of ``next_action_ids`` follow it with a score of 1.0; those that are not in the graph yet follow as soon as they
        are added. Its ``tools`` are added with a score of 1.0, too. Scored actions that are not in the graph are skipped with a warning.

        Raises:
            ToolkitError: a score is not within 0 and 1, or the id belongs to a tool or group; nothing was changed.
        """
        self._check([*next_actions, *prev_actions], action, *action.tools)
        self._put(action.id, action)
        for following, score in self._known(next_actions, action.id):
            self._toolkit.add_edge(action.id, following, score)
        for before, score in self._known(prev_actions, action.id):
            self._toolkit.add_edge(before, action.id, score)
        self._follow_ids(action)
        for tool in action.tools:
            self.add_tool(tool, connected_actions=[(action, self._toolkit.get_score(action.id, tool.id))])

    def add_tool(self, tool: Tool, connected_actions: Sequence[Scored] = ()) -> None:
        """Add a tool, unless it is in the graph, with a Call edge from each of these actions.

        An action that is not in the graph is skipped with a warning. A tool that no edge leads to is removed with another warning.

        Raises:
            ToolkitError: a score is not within 0 and 1, or the id belongs to an action or group; nothing was changed.
        """
        self._check(connected_actions, tool)
        self._put(tool.id, tool)
        for action, score in self._known(connected_actions, tool.id):
            self._toolkit.add_edge(action, tool.id, score)
        if not self._toolkit.predecessors(tool.id):
            telemetry.log.warning("toolkit.tool_unreachable", tool=tool.id)
            self._toolkit.remove_vertex(tool.id)

    def add_tool_group(self, tool_group: ToolGroup, connected_actions: Sequence[Scored] = ()) -> None:
        """Add a group with its tools, with a Call edge from each of these actions to the group.

        An existing group with that id is replaced: tools that stay keep their edges and scores, and tools that are no longer in it
        are removed unless an action or another group leads to them. Actions that are not in the graph are skipped with a warning.

        Raises:
            ToolkitError: a score is not within 0 and 1, or an id belongs to something of another kind; nothing was changed.
        """
        self._check(connected_actions, tool_group, *tool_group.tools)
        self._toolkit.add_vertex(tool_group.id, data=tool_group)
        for action, score in self._known(connected_actions, tool_group.id):
            self._toolkit.add_edge(action, tool_group.id, score)
        self._fill(tool_group)
        if not self._toolkit.predecessors(tool_group.id):
            telemetry.log.warning("toolkit.group_unreachable", group=tool_group.id)

    # -- reading and removing ---------------------------------------------------------------------

    def get_action(self, action_id: str) -> Action:
        """Return a copy of an action.

        Raises:
            ToolkitError: there is no such action (it is a ValueError).
        """
        action = self._toolkit.get_action(action_id)
        if action is None:
            raise ToolkitError(f"there is no action {action_id!r} in the toolkit graph")
        return action

    def remove_tool(self, tool_id: str) -> None:
        """Remove a tool, and its group when it was the last tool there; do nothing when there is no such tool.

        Raises:
            ToolkitError: the id belongs to an action or a group.
        """
        self._remove(tool_id, "tool")

    def remove_action(self, action_id: str) -> None:
        """Remove an action, and the tools that nothing else leads to; do nothing when there is no such action.

        Raises:
            ToolkitError: the id belongs to a tool or a group.
        """
        self._remove(action_id, "action")

    def remove_tool_group(self, group_id: str) -> None:
        """Remove a group and its tools; do nothing when there is no such group.

        Raises:
            ToolkitError: the id belongs to an action or a tool.
        """
        self._remove(group_id, "group")

    # -- recommending -----------------------------------------------------------------------------

    def recommend_subgraph(self, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0) -> Toolkit:
        """Return the part of the graph that fits these actions; see ``toolbus.toolkit.recommend_subgraph``."""
        return recommend_subgraph(self._toolkit, actions, threshold, hops)

    def recommend_tools_actions(
        self, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0
    ) -> tuple[list[Tool], list[Action]]:
        """Return the tools and actions that fit these actions; see ``toolbus.toolkit.recommend_tools_actions``."""
        return recommend_tools_actions(self._toolkit, actions, threshold, hops)

    def visualize(self, graph: Toolkit, title: str, show: bool = False) -> Figure:
        """Draw a graph; see ``toolbus.toolkit.draw.visualize``."""
        from toolbus.toolkit.draw import visualize  # noqa: PLC0415 - drawing needs matplotlib, the rest does not

        return visualize(graph, title, show=show)

    # -- inside -----------------------------------------------------------------------------------

    def _check(self, scored: Iterable[Scored], *items: Item) -> None:
        """Refuse wrong scores and ids before anything is changed."""
        for action, score in scored:
            check_score(score, f"the score between {items[0].id!r} and the action {action.id!r}")
        for item in items:
            there = kind_of(self._toolkit.item(item.id))
            if there and there != kind_of(item):
                raise ToolkitError(f"vertex {item.id!r} is {a(there)} already; give the {kind_of(item)} another id")

    def _known(self, scored: Iterable[Scored], vertex: str) -> list[tuple[str, float]]:
        """Return ids and scores of the actions that are in the graph; warn about each other one."""
        known: list[tuple[str, float]] = []
        for action, score in scored:
            if isinstance(self._toolkit.item(action.id), Action):
                known.append((action.id, score))
            else:
                telemetry.log.warning("toolkit.action_unknown", action=action.id, vertex=vertex)
        return known

    def _put(self, id: str, item: Item) -> None:
        if self._toolkit.item(id) is None:
            self._toolkit.add_vertex(id, data=item)

    def _follow_ids(self, action: Action) -> None:
        for following in action.next_action_ids:
            if isinstance(self._toolkit.item(following), Action):
                self._toolkit.add_edge(action.id, following)
            else:
                self._awaited.setdefault(following, []).append(action.id)
        for waiting in self._awaited.pop(action.id, ()):
            before = self._toolkit.item(waiting)
            if isinstance(before, Action) and action.id in before.next_action_ids:
                self._toolkit.add_edge(waiting, action.id)

    def _fill(self, group: ToolGroup) -> None:
        toolkit, wanted = self._toolkit, {tool.id: tool for tool in group.tools}
        for member in toolkit.successors(group.id):
            if member not in wanted:
                toolkit.remove_edge(group.id, member)
                if not toolkit.predecessors(member):
                    toolkit.remove_vertex(member)
        for member, tool in wanted.items():
            toolkit.add_vertex(member, data=tool)
            toolkit.add_edge(group.id, member)

    def _remove(self, id: str, kind: str) -> None:
        there = kind_of(self._toolkit.item(id))
        if there and there != kind:
            raise ToolkitError(f"{id!r} is {a(there)}, not {a(kind)}")
        self._toolkit.remove_vertex(id)
