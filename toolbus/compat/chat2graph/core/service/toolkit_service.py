"""``ToolkitService``: one service for the process, with Chat2Graph's forms of each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolbus.bus import telemetry
from toolbus.compat.awaiting import finished
from toolbus.compat.chat2graph.core.common.singleton import Singleton
from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_tool import McpTool
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolGroup
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit
from toolbus.toolkit.graph import Action, Tool
from toolbus.toolkit.graph import ToolGroup as GraphGroup
from toolbus.toolkit.service import Scored
from toolbus.toolkit.service import ToolkitService as GraphService


class Service(GraphService):
    """The methods of the process's one service, for any graph."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        super().__init__(Toolkit() if toolkit is None else toolkit)

    def get_action(self, *ids: str) -> Action:
        """Return a copy of an action, for ``get_action(action_id)`` or ``get_action(id, action_id)``.

        Raises:
            ToolkitError: there is no such action (it is a ValueError).
        """
        return super().get_action(_last(ids))

    def remove_tool(self, *ids: str) -> None:
        """Remove a tool, for ``remove_tool(tool_id)`` or ``remove_tool(id, tool_id)``."""
        self.get_toolkit().remove_vertex(_last(ids))

    def remove_action(self, *ids: str) -> None:
        """Remove an action, for ``remove_action(action_id)`` or ``remove_action(id, action_id)``."""
        self.get_toolkit().remove_vertex(_last(ids))

    def add_tool_group(self, tool_group: GraphGroup, connected_actions: Sequence[Scored] = ()) -> None:
        """Ask a group for its tools and add them: each action gets an edge to each tool, and so does the group, with the score 1.0.

        Tools that the group listed before are recognised by name; those that it no longer lists are removed.

        Raises:
            ToolkitError: a score is not within 0 and 1.
        """
        listed = {tool.name: tool for tool in _listed(tool_group)}
        self._check(connected_actions, tool_group, *listed.values())
        toolkit = self.get_toolkit()
        toolkit.add_vertex(tool_group.id, data=tool_group)
        callers = self._known(connected_actions, tool_group.id)
        for member in toolkit.successors(tool_group.id):
            known = toolkit.item(member)
            if isinstance(known, Tool) and known.name in listed:
                listed[known.name] = known
            else:
                # Not by remove_vertex, which would remove the group together with its last tool.
                toolkit.get_graph().remove_node(member)
        for tool in listed.values():
            self._put(tool.id, tool)
            toolkit.add_edge(tool_group.id, tool.id)
            for action, score in callers:
                toolkit.add_edge(action, tool.id, score)
        if not callers:
            telemetry.log.warning("toolkit.group_unreachable", group=tool_group.id)


class ToolkitService(Service, metaclass=Singleton):
    """The service of this process.

    ``ToolkitService()`` creates it once and returns it from then on; ``ToolkitService.instance`` is the service, or None.
    """


def _listed(group: GraphGroup) -> list[Tool]:
    if not isinstance(group, ToolGroup):
        return group.tools
    return [each if isinstance(each, Tool) else _mcp_tool(each, group) for each in finished(group.list_tools())]


def _mcp_tool(about: Any, group: ToolGroup) -> McpTool:
    return McpTool(
        about.name, about.description or "", group, parameters=getattr(about, "input_schema", None) or getattr(about, "inputSchema", None)
    )


def _last(ids: tuple[str, ...]) -> str:
    """Return the id, which may stand after an id of the toolkit."""
    if len(ids) not in {1, 2}:
        raise TypeError(f"give the id, or the toolkit's id and the id; these are {len(ids)} arguments")
    return ids[-1]
