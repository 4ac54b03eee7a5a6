"""``McpTool`` at the path of earlier versions of Chat2Graph."""

from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_tool import McpTool

__all__ = ["McpTool"]
