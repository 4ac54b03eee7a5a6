"""``McpService``: use an MCP server as a group of tools."""

from __future__ import annotations

from typing import Any

from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolGroup


class McpService(ToolGroup):
    """The tools of an MCP server. A subclass may make the connection, or list the tools, itself."""

    def __init__(self, mcp_config: McpConfig) -> None:
        super().__init__(mcp_config)
        self._mcp_config = mcp_config

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Return a new open connection; whoever asked for it closes it.

        Raises:
            ModuleNotFoundError: the package ``mcp`` is not installed.
            RuntimeError: the server can't be reached.
        """
        from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_connection import McpConnection  # noqa: PLC0415 - it needs an optional package

        connection = McpConnection(self._mcp_config)
        await connection.connect()
        return connection

    async def list_tools(self) -> list[Any]:
        """Return the tools that the server lists, over a separate connection."""
        connection = await self.create_connection()
        try:
            return await connection.list_tools()
        finally:
            await connection.close()
