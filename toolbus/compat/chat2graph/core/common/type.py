"""Kinds of tools, groups, transports and resources."""

from __future__ import annotations

from enum import Enum


class ToolType(Enum):
    """The origin of a tool."""

    LOCAL_TOOL = "LOCAL_TOOL"
    MCP_TOOL = "MCP_TOOL"


class FunctionCallStatus(Enum):
    """The outcome of a call of a tool."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ToolGroupType(Enum):
    """The kind of a group of tools."""

    MCP = "MCP"
    PACKAGE = "PACKAGE"


class McpTransportType(Enum):
    """The transport to an MCP server."""

    STDIO = "STDIO"
    SSE = "SSE"
    WEBSOCKET = "WEBSOCKET"
    STREAMABLE_HTTP = "STREAMABLE_HTTP"


class ToolResourceType(Enum):
    """The state that a connection to tools keeps between calls."""

    STATELESS = "STATELESS"
    STATEFUL = "STATEFUL"
    STACKABLE = "STACKABLE"
