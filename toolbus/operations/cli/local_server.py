"""The server of a command that brings one: the one that the URL names, or one of its own."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.common import fail
from toolbus.operations.cli.output import say

if TYPE_CHECKING:
    from toolbus.bus.broker.embedded import EmbeddedServer

_DEFAULT_PORT = 6379


def at_port(settings: Settings, port: int | None) -> Settings:
    """Return settings whose server is at a port of this machine; at a free one for 0, as they are for None."""
    if port is None:
        return settings
    from toolbus.bus.broker.embedded import free_port

    port = port or free_port()
    return Settings.load({}, base=settings, url=f"redis://127.0.0.1:{port}")


def find_server(settings: Settings, stack: contextlib.ExitStack, data: Path | None = None) -> EmbeddedServer | None:
    """Use the server that the URL names, or start one there and return it.

    Args:
        settings: of the command.
        stack: ends the server.
        data: the folder in which a server that is started here keeps its data; None keeps it in memory only.
    """
    from toolbus.bus.broker.embedded import EmbeddedServer
    from toolbus.bus.values.urls import redact

    if not settings.url.startswith(("redis://", "rediss://")):
        say(f"using the server of {redact(settings.url)}")
        return None
    address = urlsplit(settings.url)
    host, port = address.hostname or "127.0.0.1", address.port or _DEFAULT_PORT
    if _answers(host, port):
        unused = "" if data is None else "; it keeps its own data, and --data is for a server that is started here"
        say(f"using the server at {host}:{port}{unused}")
    elif host not in {"127.0.0.1", "localhost", "::1"}:
        fail(f"no server answers at {host}:{port}, and a server can only be started on this machine; unset TOOLBUS_URL or leave --url out")
    elif address.scheme == "rediss":
        fail(f"no server answers at {host}:{port}, and a server started here has no TLS; write redis:// instead of rediss://")
    else:
        server = stack.enter_context(EmbeddedServer(port, data_dir=data, appendonly=data is not None))
        say(f"started a server on 127.0.0.1:{port}; it keeps its data in {'memory only' if data is None else data}")
        return server
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
