"""Chat2Graph's toolkit: its names and conventions over ``toolbus.toolkit`` (``toolbus[toolkit]``).

Modules have the paths of Chat2Graph: ``app.core.toolkit.tool`` is ``toolbus.compat.chat2graph.core.toolkit.tool``.
"""

from toolbus.compat.chat2graph.core.common.singleton import AbcSingleton, Singleton
from toolbus.compat.chat2graph.core.common.type import McpTransportType, ToolGroupType, ToolResourceType, ToolType
from toolbus.compat.chat2graph.core.sdk.wrapper.toolkit_wrapper import ToolkitWrapper
from toolbus.compat.chat2graph.core.service.toolkit_service import ToolkitService
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_service import McpService
from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_tool import McpTool
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig, McpTransportConfig, ToolGroupConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolGroup, ToolPackage
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit

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
