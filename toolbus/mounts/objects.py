"""Serve a FastMCP, or an ``MCPServer`` of the official SDK, within the worker's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolbus.mounts.options import Options, words_of
from toolbus.mounts.provider import InProcess
from toolbus.results import ConfigurationError

if TYPE_CHECKING:
    from toolbus.mounts.service import MountedServer

_HOMES = frozenset({("fastmcp", "FastMCP"), ("mcp", "MCPServer")})


def is_server(value: object) -> bool:
    """Return whether a value is a server object; neither package is imported for it."""
    return any((cls.__module__.partition(".")[0], cls.__name__) in _HOMES for cls in type.__getattribute__(type(value), "__mro__"))


def mount_of(server: Any, name: str = "", options: Options | None = None) -> MountedServer:
    """Return a server object's tools as a service, for ``serve``.

    Its functions run in this process, so its tools are not external.

    Args:
        server: a FastMCP, or an ``MCPServer`` of the official SDK.
        name: the service's id; the server's own name when left out.
        options: which of its tools are served, and how.

    Raises:
        ConfigurationError: it is none.
    """
    from toolbus.mounts.service import MountedServer  # noqa: PLC0415 - it needs the package of which the object is

    if not is_server(server):
        raise ConfigurationError(f"a {type(server).__qualname__} is no FastMCP and no MCPServer")
    found = name or words_of(str(getattr(server, "name", "")))[:64] or "mcp"
    return MountedServer(found, InProcess(server), options or Options(external=False, resources=False))
