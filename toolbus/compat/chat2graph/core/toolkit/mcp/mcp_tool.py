"""``McpTool``: use a tool of an MCP server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolbus.compat.chat2graph.core.common.type import ToolType
from toolbus.compat.chat2graph.core.model.task import ToolCallContext
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolGroup


def _text_of(content: Any) -> Any:
    """Return the text of a result that consists of texts, as that project's reasoners do; anything else as it is."""
    texts: list[Any] = [getattr(part, "text", None) for part in content] if isinstance(content, list) else []
    return "\n".join(texts) if texts and all(isinstance(text, str) for text in texts) else content


class McpTool(Tool):
    """A tool that is called through a connection of its group.

    Args:
        name, description: the tool's name and description as the server lists them.
        tool_group: the server's group.
        parameters: the ``inputSchema`` that the server lists; any object when left out.
    """

    def __init__(self, name: str, description: str, tool_group: ToolGroup, *, parameters: Mapping[str, Any] | None = None) -> None:
        async def function(*, tool_call_ctx: ToolCallContext | None = None, **kwargs: Any) -> Any:
            connection = await tool_group.create_connection(tool_call_ctx)
            try:
                return _text_of(await connection.call(tool_name=name, **kwargs))
            finally:
                await connection.close()

        function.__name__ = function.__qualname__ = name
        # A worker's service is named after the module, and each server is a service.
        function.__module__ = f"mcp.{re.sub(r'[^A-Za-z0-9_-]', '-', tool_group.name)[:100]}"
        function.__doc__ = description
        super().__init__(
            name, description, function, ToolType.MCP_TOOL, parameters={"type": "object"} if parameters is None else parameters
        )
        self._tool_group = tool_group

    def get_tool_group(self) -> ToolGroup:
        """Return the server's group."""
        return self._tool_group
