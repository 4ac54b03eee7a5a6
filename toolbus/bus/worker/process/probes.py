"""Answer the HTTP probes of a process: whether it lives, has started and is ready; its report and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolbus.bus.telemetry.metrics import MEDIA_TYPE
from toolbus.bus.worker.process.autoscaler import Bounds
from toolbus.bus.worker.process.lifeline import Told
from toolbus.bus.worker.process.load import Load
from toolbus.bus.worker.process.report import ProcessCounts, Report, ended, report_of, summed, worker_metrics

if TYPE_CHECKING:
    from toolbus.bus.worker.worker import Worker


_REQUEST_LIMIT = 8192
_MOST_CLIENTS = 64
_PATIENCE = 5.0
_JSON = "application/json"
_STATUS = {200: b"200 OK", 404: b"404 Not Found", 405: b"405 Method Not Allowed", 503: b"503 Service Unavailable"}


class Probed(Protocol):
    """A process, as far as probes are concerned."""

    @property
    def started(self) -> bool:
        """True once it has served."""

    async def ready(self) -> bool:
        """Return whether it takes requests now."""

    async def report(self) -> object:
        """Return its counts, as a value that can be written as JSON."""

    async def metrics(self) -> str:
        """Return its metrics in the text format of Prometheus."""


@contextlib.asynccontextmanager
async def probes(probed: Probed, host: str, port: int) -> AsyncIterator[int]:
    """Answer probes at an address, and yield the port; for port 0, a free one is chosen.

    ``/live`` answers as long as the event loop runs; ``/startup`` and ``/ready`` answer 503 until they hold. Of too many clients that
    send nothing, the first ones are dropped.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    clients: dict[asyncio.StreamWriter, None] = {}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= _MOST_CLIENTS:
            oldest = next(iter(clients))
            del clients[oldest]
            oldest.transport.abort()
        clients[writer] = None
        try:
            await _reply(probed, reader, writer)
        finally:
            clients.pop(writer, None)
            # One that does not read its answer would keep the descriptor.
            writer.transport.abort()

    server = await asyncio.start_server(accept, host, port, limit=_REQUEST_LIMIT)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1]
    finally:
        for client in list(clients):
            client.transport.abort()


async def _reply(probed: Probed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE):
            request = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            path = rest.partition(" ")[0].partition("?")[0]
            status, kind, body = await _answer(probed, method, path)
            head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (_STATUS[status], kind.encode(), len(body)) + (b"" if method == "HEAD" else body))
            await writer.drain()
            writer.close()
            await writer.wait_closed()


async def _answer(probed: Probed, method: str, path: str) -> tuple[int, str, bytes]:
    """Return the status, the media type and the body of an answer."""
    if method not in {"GET", "HEAD"}:
        return _said(405, {"error": "ask with GET"})
    match path:
        case "/live":
            return _said(200, {"live": True})
        case "/startup":
            return _said(200 if probed.started else 503, {"started": probed.started})
        case "/ready":
            ready = await probed.ready()
            return _said(200 if ready else 503, {"ready": ready})
        case "/metrics":
            return 200, MEDIA_TYPE, (await probed.metrics()).encode()
        case "/":
            return _said(200 if await probed.ready() else 503, await probed.report())
        case _:
            return _said(404, {"error": "there are /live, /startup, /ready, /metrics, and / with all counts"})


def _said(status: int, about: Any) -> tuple[int, str, bytes]:
    return status, _JSON, msgspec.json.encode(about)


CHILD_HOST = "127.0.0.1"
"""The address at which children answer their supervisor."""

_PROBED_CHILDREN_PATIENCE = 2.0
_MOST_BYTES = 16_777_216
_reports = msgspec.json.Decoder(Report)


class ProbedChildren:
    """Answers probes for the children of a supervisor, whose ``ChildWatcher`` it is.

    Args:
        bounds: the fewest and the most that should run.

    Attributes:
        started: set once any of them has served.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.started = False
        self._bounds = bounds
        self._restarts = 0
        # Since the start: of all slots, and of those that went.
        self._added = self._dismissed = 0
        self._slots: frozenset[int] | None = None
        self._loads: dict[int, Load] = {}
        self._ports: dict[int, int] = {}
        self._last: dict[int, Report] = {}
        # Of the children that have ended, as they were asked last.
        self._past = Report()

    def serving(self, slot: int, told: Told) -> None:
        """Take in what a child told when it began to serve."""
        self.started = True
        if told.probes:
            self._ports[slot] = told.probes

    def ended(self, slot: int) -> None:
        """Take in that a child has ended."""
        self._ports.pop(slot, None)
        self._loads.pop(slot, None)
        last = self._last.pop(slot, None)
        if last is not None:
            self._past = summed([self._past, ended(last)])

    def restarting(self) -> None:
        """Take in that a child that had ended is started again."""
        self._restarts += 1

    def reported(self, slot: int, load: Load) -> None:
        """Take in how busy a child is."""
        if self._slots is None or slot in self._slots:
            self._loads[slot] = load

    def resized(self, slots: frozenset[int]) -> None:
        """Take in which slots are to have a child."""
        before = self._slots or frozenset()
        self._added += len(slots - before)
        self._dismissed += len(before - slots)
        for slot in before - slots:
            self._loads.pop(slot, None)
        self._slots = slots

    async def ready(self) -> bool:
        """Return whether any of them takes requests now."""
        return (await self.report()).healthy

    async def report(self) -> Report:
        """Return the sum of their counts; one that does not answer counts as it did before, and is not ready."""
        await asyncio.gather(*(self._ask(slot, port) for slot, port in list(self._ports.items())))
        total = summed([self._past, *self._last.values()])
        total.processes = self._counts()
        return total

    async def metrics(self) -> str:
        """Return their metrics together."""
        return worker_metrics(await self.report())

    def _counts(self) -> ProcessCounts:
        least, most = self._bounds
        return ProcessCounts(
            wanted=least if self._slots is None else len(self._slots),
            least=least,
            most=most,
            restarts=self._restarts,
            added=max(0, self._added - least),
            dismissed=self._dismissed,
            use=sum(load.use for load in self._loads.values()),
        )

    async def _ask(self, slot: int, port: int) -> None:
        try:
            async with asyncio.timeout(_PROBED_CHILDREN_PATIENCE):
                found = await _report(port)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            # TimeoutError is an OSError.
            found = self._last.get(slot, Report())
            found.healthy, found.ready = False, 0
        if self._ports.get(slot) == port:
            self._last[slot] = found


async def _report(port: int) -> Report:
    """Ask a child.

    Raises:
        OSError: it can't be asked.
        ValueError: it answers something else.
        asyncio.IncompleteReadError: it ended meanwhile.
    """
    reader, writer = await asyncio.open_connection(CHILD_HOST, port, limit=_MOST_BYTES)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return _reports.decode(await reader.readexactly(int(length)))
    finally:
        writer.transport.abort()


class ProbedWorker:
    """Answers probes for a worker.

    Attributes:
        started: set once the worker has served.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.started = False

    async def ready(self) -> bool:
        """Return whether the worker takes requests now."""
        return self._worker.healthy

    async def report(self) -> Report:
        """Return its counts; none before it has served."""
        return report_of(self._worker) if self.started else Report()

    async def metrics(self) -> str:
        """Return its metrics."""
        return worker_metrics(await self.report())
