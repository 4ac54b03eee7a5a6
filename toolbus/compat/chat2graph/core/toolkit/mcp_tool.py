"""``McpTool`` where earlier versions of that project have it."""

from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_tool import McpTool

__all__ = ["McpTool"]
