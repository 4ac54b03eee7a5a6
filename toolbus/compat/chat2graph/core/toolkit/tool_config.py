"""Configurations of groups of tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Self

from toolbus.compat.chat2graph.core.common.type import McpTransportType, ToolGroupType, ToolResourceType

__all__ = ["McpConfig", "McpTransportConfig", "McpTransportType", "ToolGroupConfig"]


@dataclass
class McpTransportConfig:
    """The way to reach an MCP server.

    Attributes:
        url, headers: for a running server.
        command, args, env: for a server that is to be started.
        timeout, sse_read_timeout: seconds.
    """

    transport_type: McpTransportType
    resource_type: ToolResourceType = ToolResourceType.STATEFUL
    url: str = "http://localhost:8931"
    command: str = "npx"
    args: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    timeout: float = 5.0
    sse_read_timeout: float = 300.0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read the result of ``to_dict``; a missing transport is STDIO, a missing resource type STATELESS; ignore other keys."""
        known = {name: value for name, value in config.items() if name in cls.__dataclass_fields__}
        transport = McpTransportType(known.pop("transport_type", "STDIO"))
        return cls(transport, ToolResourceType(known.pop("resource_type", "STATELESS")), **known)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(self).items()}


@dataclass
class ToolGroupConfig:
    """The kind and name of a group."""

    type: ToolGroupType
    name: str


@dataclass
class McpConfig(ToolGroupConfig):
    """An MCP server as a group."""

    transport_config: McpTransportConfig
