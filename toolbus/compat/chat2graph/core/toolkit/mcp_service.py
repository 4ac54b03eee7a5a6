"""``McpService`` at the path of earlier versions of Chat2Graph."""

from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_service import McpService

__all__ = ["McpService"]
