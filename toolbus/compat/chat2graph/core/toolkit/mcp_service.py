"""``McpService`` where earlier versions of that project have it."""

from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_service import McpService

__all__ = ["McpService"]
