"""Serve what others offer as tools of the bus: MCP servers, FastMCP objects, and the operations of an OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily

if TYPE_CHECKING:
    from toolbus.edges.mounts.mount import serve
    from toolbus.edges.mounts.options import Address, Command, InProcess, Options
    from toolbus.edges.mounts.provider import BusProvider
    from toolbus.edges.mounts.service import MountedServer, mount_of

__all__ = ["Address", "BusProvider", "Command", "InProcess", "MountedServer", "Options", "mount_of", "serve"]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.edges.mounts.service": ("MountedServer", "mount_of"),
        "toolbus.edges.mounts.options": ("Options", "Address", "Command", "InProcess"),
        "toolbus.edges.mounts.provider": ("BusProvider",),
        "toolbus.edges.mounts.mount": ("serve",),
    },
)
