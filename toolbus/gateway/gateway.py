"""``Gateway``: what every route needs."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property

from starlette.requests import HTTPConnection

from toolbus.client.bus import ToolBus
from toolbus.deadlines import Deadlines
from toolbus.gateway.backlog import Backlog
from toolbus.gateway.measures import Measures
from toolbus.gateway.openapi_document import Documents
from toolbus.gateway.options import GatewayOptions
from toolbus.gateway.principals import Authenticator, Permission, Principal
from toolbus.gateway.problems import Problem
from toolbus.gateway.supplied import Supply

_POLL = 0.05


class Gateway:
    """The bus and who may use it; routes find it as ``request.app.state.gateway``.

    Args:
        bus: open while the application runs.
        authenticator: finds out who sent a request.
        options: see there.

    Attributes:
        measures: counts of the calls that came over HTTP.
        draining: set when the gateway is told to stop: no answer that has no end of its own goes on.
        stopping: set when streams that can be resumed elsewhere are to end.
    """

    def __init__(self, bus: ToolBus, authenticator: Authenticator, options: GatewayOptions | None = None) -> None:
        self.bus = bus
        self.settings = bus.settings
        self.authenticator = authenticator
        self.options = options or GatewayOptions()
        self.measures = Measures()
        self.draining = asyncio.Event()
        self.stopping = asyncio.Event()
        self.documents = Documents()
        self.backlog = Backlog(bus.settings)
        self.supply = Supply(bus)
        self._lost_since: float | None = None
        self._looked = 0.0

    async def admitted(self, connection: HTTPConnection, permission: Permission = "call") -> Principal:
        """Return who sent a request, if they have a permission.

        Raises:
            Problem: 401, 403 or 429.
        """
        principal = await self.authenticator.principal(connection)
        if permission not in principal.may:
            raise Problem(403, "forbidden", f"{principal.name} has no permission to {permission}")
        return principal

    @property
    def connected(self) -> bool:
        """True while commands reach the server, as far as is known."""
        return bool(self.bus.statistics().get("connected", 1))

    @cached_property
    def deadlines(self) -> Deadlines:
        """The timers of requests, of which most are never due."""
        return Deadlines(asyncio.get_running_loop(), _POLL)

    async def reachable(self) -> None:
        """Return when the server can be reached; a connection that was just lost is waited for.

        Raises:
            Problem: 503, it can't.
        """
        now = time.monotonic()
        if now - self._looked < _POLL:
            return
        if self.connected:
            self._lost_since, self._looked = None, now
            return
        if self._lost_since is None:
            self._lost_since = now
        until = self._lost_since + self.options.outage
        while time.monotonic() < until:
            await asyncio.sleep(_POLL)
            if self.connected:
                self._lost_since = None
                return
        detail = "the gateway has lost its connection to the server and is restoring it; try again"
        raise Problem(503, "unavailable", detail, {"Retry-After": "1"}, code="no_server", retryable=True)


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the gateway that a request came to."""
    found: Gateway = connection.app.state.gateway
    return found
