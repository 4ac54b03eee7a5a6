"""Tools, connections and packages as Chat2Graph's users have them, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolbus.compat.chat2graph.core.common.type import McpTransportType, ToolGroupType
from toolbus.compat.chat2graph.core.toolkit.mcp_service import McpService
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig, McpTransportConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection


class ExampleQuery(Tool):
    """A tool that is a class, as that project's tools are."""

    def __init__(self) -> None:
        super().__init__(name="query_tool", description="", function=self.query)

    async def query(self, text: str) -> str:
        """Query the documents.

        Args:
            text: what to look for
        """
        return f"found {text}"

    def copy(self) -> ExampleQuery:
        """Another one, with an id of its own."""
        return ExampleQuery()


@dataclass
class Listed:
    """A tool as an MCP client lists it."""

    name: str
    description: str | None
    inputSchema: dict[str, Any]


class Connection(ToolConnection):
    """A connection to tools that say what they were called with."""

    closed = 0

    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        return tool_name, kwargs

    async def list_tools(self) -> list[Any]:
        return [Listed("connected", "d", {"type": "object"})]

    async def close(self) -> None:
        type(self).closed += 1


class Listing(McpService):
    """A server whose list of tools is given."""

    def __init__(self, name: str, *tools: str) -> None:
        super().__init__(McpConfig(ToolGroupType.MCP, name, McpTransportConfig(McpTransportType.STDIO)))
        self._listed = [Listed(tool, f"about {tool}", {"type": "object", "properties": {"query": {"type": "string"}}}) for tool in tools]
        self._id = f"group_{name}"

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        return Connection()

    async def list_tools(self) -> list[Any]:
        return self._listed
