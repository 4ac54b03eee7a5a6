"""Chat2Graph's toolkit: its names and conventions over ``toolbus.toolkit`` (``toolbus[toolkit]``).

Modules have the paths of Chat2Graph: ``app.core.toolkit.tool`` is ``toolbus.compat.chat2graph.core.toolkit.tool``.
Type checkers see the names of this package, and not the modules at those paths.
"""

from toolbus.compat.chat2graph.mcp import McpService
from toolbus.compat.chat2graph.toolkit import (
    AbcSingleton,
    McpConfig,
    McpTool,
    McpTransportConfig,
    McpTransportType,
    Singleton,
    Tool,
    ToolConnection,
    ToolGroup,
    ToolGroupConfig,
    ToolGroupType,
    Toolkit,
    ToolkitService,
    ToolkitWrapper,
    ToolPackage,
    ToolResourceType,
    ToolType,
)
from toolbus.compat.facade import make_modules
from toolbus.toolkit.graph import Action

__all__ = [
    "AbcSingleton",
    "Action",
    "McpConfig",
    "McpService",
    "McpTool",
    "McpTransportConfig",
    "McpTransportType",
    "Singleton",
    "Tool",
    "ToolConnection",
    "ToolGroup",
    "ToolGroupConfig",
    "ToolGroupType",
    "ToolPackage",
    "ToolResourceType",
    "ToolType",
    "Toolkit",
    "ToolkitService",
    "ToolkitWrapper",
]

_TOOLKIT, _MCP = f"{__name__}.toolkit", f"{__name__}.mcp"

# The tools of MCP servers have two paths, that of earlier versions of Chat2Graph and that of later ones.
make_modules(
    __name__,
    {
        "core.common.singleton": (_TOOLKIT, "AbcSingleton Singleton"),
        "core.common.type": (_TOOLKIT, "FunctionCallStatus McpTransportType ToolGroupType ToolResourceType ToolType"),
        "core.model.task": (_TOOLKIT, "ToolCallContext"),
        "core.sdk.init_server": (_TOOLKIT, "init_server"),
        "core.sdk.wrapper.toolkit_wrapper": (_TOOLKIT, "ToolkitWrapper"),
        "core.service.toolkit_service": (_TOOLKIT, "Service ToolkitService"),
        "core.toolkit.action": ("toolbus.toolkit.graph", "Action"),
        "core.toolkit.mcp.mcp_connection": (_MCP, "McpConnection"),
        "core.toolkit.mcp.mcp_service": (_MCP, "McpService"),
        "core.toolkit.mcp.mcp_tool": (_TOOLKIT, "McpTool"),
        "core.toolkit.mcp_service": (_MCP, "McpService"),
        "core.toolkit.mcp_tool": (_TOOLKIT, "McpTool"),
        "core.toolkit.tool": (_TOOLKIT, "FunctionCallResult Tool"),
        "core.toolkit.tool_config": (_TOOLKIT, "McpConfig McpTransportConfig McpTransportType ToolGroupConfig"),
        "core.toolkit.tool_connection": (_TOOLKIT, "ToolConnection"),
        "core.toolkit.tool_group": (_TOOLKIT, "ToolGroup ToolPackage"),
        "core.toolkit.toolkit": (_TOOLKIT, "Toolkit"),
    },
)
