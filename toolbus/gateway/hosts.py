"""``KnownHosts``: refuse requests that were sent to another host's name."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from toolbus.gateway.problems import Problem

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class KnownHosts:
    """Answers 421 to requests for other hosts: a page may give its own name this machine's address, and then read what it likes.

    Args:
        app: takes the other requests.
        names: the names by which the gateway is reached.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = LOOPBACK) -> None:
        self._app = app
        self._names = frozenset(name.encode("latin-1") for name in names)
        # Most requests come to the same place, which is known with its port.
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "lifespan":
            for name, value in scope["headers"]:
                if name == b"host" and value not in self._known:
                    if _name_of(value) not in self._names:
                        detail = "this gateway is open to programs on its own machine, which reach it as localhost; others need tokens"
                        await Problem(421, "unknown_host", detail).response()(scope, receive, send)
                        return
                    if len(self._known) < 100:
                        self._known.add(value)
        await self._app(scope, receive, send)


def _name_of(host: bytes) -> bytes:
    name, _, port = host.lower().rpartition(b":")
    return name if name and port.isdigit() else host.lower()
