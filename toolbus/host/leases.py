"""``HostLease``: keeps a host's routes and claims alive with one write for all of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import HostId, Routes
from toolbus.platform.records import ToolRoute
from toolbus.results import BrokerError, ToolbusError

# Seconds for which changes are gathered before they are told.
_GATHERED_FOR = 0.1
_A_LEASE = 3
# Leases after which a host that nobody can see ends.
_GIVEN_UP = 5


class HostLease:
    """Renews three times a lease, and tells changes soon.

    Args:
        routes: where they are kept.
        host: id of the host.
        lease: seconds.
        on_claims: called when the tools that this host may serve alone are others than before.
        reachable: returns whether the server can be reached over other connections.
    """

    def __init__(self, routes: Routes, host: HostId, lease: float, on_claims: Callable[[], None], reachable: Callable[[], bool]) -> None:
        self._kept = routes
        self._host = host
        self._lease = lease
        self._on_claims = on_claims
        self._reachable = reachable
        self._routes: dict[str, ToolRoute] = {}
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        self._news = asyncio.Event()
        self._wanted: frozenset[str] = frozenset()
        self._until = 0.0
        self._claims: frozenset[str] = frozenset()

    @property
    def claims(self) -> frozenset[str]:
        """The tools that this host may serve alone; none while its lease may have ended."""
        return self._claims if time.monotonic() < self._until else frozenset()

    def put(self, route: ToolRoute) -> None:
        """Tell where a tool runs; returns at once."""
        self._routes[route.tool_id] = route
        self._changed.add(route.tool_id)
        self._gone.discard(route.tool_id)
        self._news.set()

    def remove(self, tool: str) -> None:
        """Tell that a tool is not served here any more; returns at once."""
        if self._routes.pop(tool, None) is not None:
            self._changed.discard(tool)
            self._gone.add(tool)
            self._news.set()

    def want(self, tools: Collection[str]) -> None:
        """Claim these tools, and no others, from now on; returns at once."""
        wanted = frozenset(tools)
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()

    def look(self) -> None:
        """Renew soon: a tool may have become free."""
        self._news.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._lease / _A_LEASE * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter
                    await self._news.wait()
                await asyncio.sleep(_GATHERED_FOR)
            except TimeoutError:
                pass
            await self.renew()

    async def renew(self) -> None:
        """Tell what has changed, and extend the lease; what the server does not take is told with the next renewal.

        Raises:
            ToolbusError: the server can be reached, and has not taken it for some leases.
        """
        self._news.clear()
        changed, gone, wanted = self._changed, self._gone, self._wanted
        self._changed, self._gone = set(), set()
        asked = time.monotonic()
        documents = {tool: msgspec.json.encode(self._routes[tool]) for tool in changed}
        try:
            renewed = await self._kept.renew(self._host, self._lease, changed=documents, gone=gone, claims=wanted)
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))
            self._changed |= changed & self._routes.keys()
            self._gone |= gone - self._routes.keys()
            if self._claims and not self.claims:
                # Another host may have them by now.
                self._claims = frozenset()
                self._on_claims()
            if self._until and asked > self._until + _GIVEN_UP * self._lease and self._reachable():
                raise ToolbusError(f"the routes of this host could not be renewed for {_GIVEN_UP} leases: {error}") from None
            return
        self._until = asked + self._lease
        if renewed.known < len(self._routes) - len(self._changed):
            # The server was away for longer than a lease, or has lost them.
            self._changed |= self._routes.keys()
            self._news.set()
        if renewed.claims != self._claims:
            self._claims = renewed.claims
            self._on_claims()

    async def release(self, tool: str) -> None:
        """Let another host serve a tool that this one has served alone; what goes wrong is told: the claim ends with its lease."""
        self._claims -= {tool}
        self._wanted -= {tool}
        try:
            await self._kept.release(self._host, [tool])
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))

    async def leave(self) -> None:
        """Forget this host's routes, and let others have its claims."""
        try:
            await self._kept.leave(self._host, self._wanted)
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))
