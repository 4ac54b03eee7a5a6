"""A gateway of a test's own that can go away and come back at the same address."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

from starlette.requests import HTTPConnection

from tests.gateway.running import listening
from toolbus import ToolBus
from toolbus.edges.gateway.app import application
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.guards import Guards
from toolbus.edges.gateway.options import Authenticator, Everyone, Principal


class Tokens:
    """Knows principals by their bearer tokens."""

    def __init__(self, **principals: Principal) -> None:
        self._principals = principals

    def revoke(self, token: str) -> None:
        """Forget a token."""
        del self._principals[token]

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return the principal of the token."""
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or token not in self._principals:
            raise Problem(401, "unauthorized", "a token is needed", {"WWW-Authenticate": "Bearer"})
        return self._principals[token]

    async def holds(self, connection: HTTPConnection, principal: Principal) -> bool:
        """Return whether the token is known still."""
        return connection.headers["authorization"].removeprefix("Bearer ") in self._principals


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def gateway(bus: ToolBus, authenticator: Authenticator | None = None, port: int = 0) -> AsyncIterator[str]:
    """Serve the gateway's application, and yield its URL."""
    async with listening(Guards(application(Gateway(bus, authenticator or Everyone()))), port=port, lifespan="on") as url:
        yield url
