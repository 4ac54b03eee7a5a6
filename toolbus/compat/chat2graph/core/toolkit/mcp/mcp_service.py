"""``McpService``: use an MCP server as a group of tools."""

from __future__ import annotations

from typing import Any

from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolGroup
from toolbus.results import ToolkitError


class McpService(ToolGroup):
    """The tools of an MCP server. A subclass implements the connection, or lists the tools itself."""

    def __init__(self, mcp_config: McpConfig) -> None:
        super().__init__(mcp_config)

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Connect to the server.

        Raises:
            ToolkitError: it is not overridden; the facade starts no MCP server itself.
        """
        raise ToolkitError(
            f"the facade does not connect to the MCP server {self.name!r} by itself: override create_connection(), or put the server's "
            "tools on a bus and give toolbus.toolkit.group_of_definitions() what it lists"
        )

    async def list_tools(self) -> list[Any]:
        """Return the tools that the server lists, over a separate connection."""
        connection = await self.create_connection()
        try:
            return await connection.list_tools()
        finally:
            await connection.close()
