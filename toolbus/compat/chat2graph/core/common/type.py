"""Kinds of tools, groups, transports and resources."""

from __future__ import annotations

from enum import Enum


class ToolType(Enum):
    """Where a tool comes from."""

    LOCAL_TOOL = "LOCAL_TOOL"
    MCP_TOOL = "MCP_TOOL"


class ToolGroupType(Enum):
    """What a group of tools stands for."""

    MCP = "MCP"
    PACKAGE = "PACKAGE"


class McpTransportType(Enum):
    """How an MCP server is spoken to."""

    STDIO = "STDIO"
    SSE = "SSE"
    WEBSOCKET = "WEBSOCKET"
    STREAMABLE_HTTP = "STREAMABLE_HTTP"


class ToolResourceType(Enum):
    """What a connection to tools keeps between calls."""

    STATELESS = "STATELESS"
    STATEFUL = "STATEFUL"
    STACKABLE = "STACKABLE"
