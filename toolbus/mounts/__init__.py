"""Serve what others offer as tools of the bus: MCP servers, FastMCP objects, and the operations of an OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolbus.lazy import lazily

if TYPE_CHECKING:
    from toolbus.mounts.mount import serve
    from toolbus.mounts.options import Options
    from toolbus.mounts.provider import Address, BusProvider, Command, InProcess
    from toolbus.mounts.service import MountedServer, mount_of

__all__ = ["Address", "BusProvider", "Command", "InProcess", "MountedServer", "Options", "mount_of", "serve"]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.mounts.service": ("mount_of", "MountedServer"),
        "toolbus.mounts.options": ("Options",),
        "toolbus.mounts.provider": ("BusProvider", "Address", "Command", "InProcess"),
        "toolbus.mounts.mount": ("serve",),
    },
)
