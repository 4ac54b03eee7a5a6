"""``Gateway``: what every route needs."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Collection
from functools import cached_property

import msgspec
from starlette.requests import HTTPConnection

from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.calls.call import Call
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.values.results import BrokerError, CredentialsRefused, ErrorInfo
from toolbus.bus.watch.exporter import NamespaceMetrics
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.options import ADMITTED, Authenticator, GatewayOptions, Permission, Principal
from toolbus.edges.gateway.supply import Supply

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Upper bounds of the durations' buckets (seconds)."""
OTHER = "_OTHER"
"""Stands for tools that are not known, and for those that have no metrics of their own."""


class Durations(msgspec.Struct):
    """The durations of one tool's calls with one outcome."""

    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0


class Measures:
    """The counts of one gateway.

    Args:
        tools: how many have counts of their own, those that are called first.

    Attributes:
        calls: durations by tool and type of error, which is empty for a success.
        in_flight: calls that have not ended.
        streams: those of them whose events are sent as they happen.
    """

    def __init__(self, tools: int) -> None:
        self._most = tools
        self.calls: dict[tuple[str, str], Durations] = {}
        self.in_flight = 0
        self.streams = 0
        self._names: set[str] = set()

    def ended(self, tool: str, seconds: float, error: ErrorInfo | None, *, known: bool = True) -> None:
        """Count a call.

        Args:
            tool: its name.
            seconds: how long it took.
            error: why it failed.
            known: whether there is such a tool; anybody may make up names without end.
        """
        if tool not in self._names:
            if known and len(self._names) < self._most:
                self._names.add(tool)
            else:
                tool = OTHER
        key = (tool, "" if error is None else error.type)
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = Durations()
        found.buckets[bisect_left(BUCKETS, seconds)] += 1
        found.seconds += seconds


_POLL = 0.05
_ANSWERS = 1.0
_MEGABYTE = 1_000_000
# Seconds between two looks at what streams hold; a gateway takes in some MB meanwhile.
_LOOK_AGAIN = 0.1


class StreamBuffers:
    """Keeps what the streams of a gateway hold for slow clients below a bound.

    Args:
        most: megabytes of all together; above that, the streams that hold most end as ``slow_consumer``.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._calls: set[Call] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> None:
        """Count a call until ``remove``, also what is not read of it when it has ended."""
        self._calls.add(call)
        if self._timer is None:
            self._look_later()

    def remove(self, call: Call) -> None:
        """Count a call no longer."""
        self._calls.discard(call)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._look) if self._calls else None

    def _look(self) -> None:
        held = sorted(((size, call) for call in self._calls if (size := call.unread)), key=lambda each: each[0])
        over = sum(size for size, _ in held) - self._most * _MEGABYTE
        while held and over > 0:
            size, call = held.pop()
            over -= size
            telemetry.log.warning("gateway.stream_dropped", id=call.id, bytes=size)
            message = f"the client reads too slowly: {size} bytes wait for it, and all streams together hold more than {self._most:g} MB"
            call.drop(ErrorInfo("slow_consumer", "gateway_buffer", message))
        self._look_later()


class Gateway:
    """The bus and who may use it; routes find it as ``request.app.state.gateway``.

    Args:
        bus: open while the application runs.
        authenticator: finds out who sent a request.
        options: see there.

    Attributes:
        measures: counts of the calls that came over HTTP.
        draining: set when the gateway is told to stop: no answer that has no end of its own goes on.
        buffers: what its streams hold.
        stopping: set when streams that can be resumed elsewhere are to end.
    """

    def __init__(self, bus: ToolBus, authenticator: Authenticator, options: GatewayOptions | None = None) -> None:
        self.bus = bus
        self.settings = bus.settings
        self.authenticator = authenticator
        self.options = options or GatewayOptions()
        self.measures = Measures(bus.settings.metric_tools)
        self.buffers = StreamBuffers(self.options.buffer)
        self.draining = asyncio.Event()
        self.stopping = asyncio.Event()
        self.namespace = NamespaceMetrics(bus.settings)
        self.supply = Supply(bus)
        self._lost_since: float | None = None
        self._looked = 0.0

    async def admitted(self, connection: HTTPConnection, *permissions: Permission, query: Collection[str] = ()) -> Principal:
        """Return who sent a request, if they have one of these permissions, and its query has these parameters alone.

        Args:
            connection: the request.
            permissions: any of them will do; by default ``call``.
            query: names of the parameters that the request may have.

        Raises:
            Problem: 401, 403, 422 or 429.
        """
        principal = await self.authenticator.principal(connection)
        needed = permissions or ("call",)
        if principal.may.isdisjoint(needed):
            raise Problem(403, "forbidden", f"{principal.name} has no permission to {' or to '.join(needed)}")
        check_query(connection, query)
        connection.scope[ADMITTED] = principal, self.authenticator
        return principal

    @property
    def connected(self) -> bool:
        """True while commands reach the server, as far as is known."""
        return bool(self.bus.statistics().get("connected", 1))

    async def unready(self) -> str:
        """Return why calls can't be made now; empty when they can."""
        # A connection that was lost does not say why it can't be restored; a new one does. One to a server that hangs looks alive for
        # some seconds, and one to a server whose memory is full is.
        try:
            async with asyncio.timeout(_ANSWERS), Admin(self.settings) as admin:
                refusal = await admin.refusal()
        except CredentialsRefused as error:
            return str(error)
        except (BrokerError, TimeoutError) as error:
            return f"the server does not answer: {str(error) or 'not within a second'}"
        if refusal:
            return f"the server refuses calls: {refusal}"
        return "" if self.connected else "the gateway has lost its connection to the server, and is restoring it"

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
        detail = "the gateway has no connection to the server (its /ready says why); try again"
        raise Problem(503, "unavailable", detail, {"Retry-After": "1"}, code="no_server", retryable=True)


def check_query(connection: HTTPConnection, known: Collection[str] = ()) -> None:
    """Refuse parameters of a query that nothing reads, of which a misspelt one would change the answer unnoticed.

    Raises:
        Problem: 422, there is one.
    """
    if not connection.scope["query_string"]:
        return
    unknown = sorted(connection.query_params.keys() - set(known))
    if unknown:
        there_are = f"there are: {', '.join(sorted(known))}" if known else "there are none here"
        raise Problem(422, "invalid_query", f"there is no parameter {unknown[0][:50]!r} ({there_are})")


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the gateway that a request came to."""
    found: Gateway = connection.app.state.gateway
    return found
