"""``Board``: what the page shows, in rows by section and key, sampled by the gateway and told to everybody who looks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse

from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.waiting import at_most
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.watch.views import InstanceView, SessionView, Snapshot
from toolbus.bus.watch.watch import Watch
from toolbus.edges.gateway.bodies import EVENTS, Problem
from toolbus.edges.gateway.calls import COMMENT, named_event
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.operations import Admitted
from toolbus.edges.gateway.options import Principal

Sections = dict[str, dict[str, Any]]
"""Rows by key, by section."""

_MOST_TEXT = 240
_MOST_ERROR = 2_000
_MOST_REFUSED = 100
_MOST_RUNNING = 300


class CatalogueRow(msgspec.Struct, frozen=True):
    """A tool in the list of tools; its schema is read when somebody opens it."""

    name: str
    service: str
    text: str
    category: str
    groups: tuple[str, ...]
    available: bool
    digest: str


class SessionRow(msgspec.Struct, frozen=True):
    """An open session, and since when none of its calls began."""

    service: str
    user: str
    session: str
    instance: str
    running: int
    since: int


def sections_of(snapshot: Snapshot, refused: Iterable[RefusedTool]) -> Sections:
    """Return the rows of a snapshot."""
    return {
        "services": {row.id: row for row in snapshot.services},
        "instances": {row.id: _instance(row) for row in snapshot.instances},
        "tools": {f"{row.service} {row.name}": msgspec.structs.replace(row, description="") for row in snapshot.tools},
        "recent": {row.entry: row for row in snapshot.recent},
        "dead": {f"{row.queue} {row.id}": msgspec.structs.replace(row, error=row.error[:_MOST_ERROR]) for row in snapshot.dead},
        "confirmations": {row.id: row.visible() for row in snapshot.confirmations},
        "sessions": {f"{row.service} {row.user} {row.session} {row.instance}": _session(row, snapshot.at) for row in snapshot.sessions},
        "running": {f"{row.instance} {row.id}": row for row in snapshot.running[:_MOST_RUNNING]},
        "refused": {f"{row.service} {row.name}": row._asdict() for row in list(refused)[:_MOST_REFUSED]},
    }


def changes(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what makes ``after`` of ``before``: by section, the rows to ``set`` and the keys to ``drop``."""
    found: dict[str, Any] = {}
    for section, rows in after.items():
        old = before.get(section, {})
        new = [row for key, row in rows.items() if old.get(key) != row]
        gone = [key for key in old if key not in rows]
        if new or gone:
            found[section] = {"set": new, "drop": gone}
    return found


def _instance(row: InstanceView) -> dict[str, Any]:
    """Return a worker's row, without what changes while nothing happens."""
    return {name: each for name, each in msgspec.structs.asdict(row).items() if name not in {"uptime", "commands", "connects"}}


def _session(row: SessionView, at: float) -> SessionRow:
    return SessionRow(row.service, row.user, row.session, row.instance, row.running, round(at - row.idle))


Sample = tuple[float, int, int, float, float, float | None, float | None, int, int, int, int]
"""at, queued, running, calls/s, failures/s, p50, p99, workers, live services, dead letters, confirmations."""

HOUR = 3600.0
_FINE = 300.0
_COARSE_STEP = 10.0
_MOST_FINE = 400
_MOST_COARSE = int(HOUR / _COARSE_STEP) + 1


class History:
    """Samples of the last hour: all of the last minutes, and one every ten seconds before."""

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque(maxlen=_MOST_FINE)
        self._coarse: deque[Sample] = deque(maxlen=_MOST_COARSE)

    def add(self, snapshot: Snapshot) -> Sample:
        """Keep the counts of a snapshot, and return them."""
        sample = sample_of(snapshot)
        self._fine.append(sample)
        if not self._coarse or sample[0] - self._coarse[-1][0] >= _COARSE_STEP:
            self._coarse.append(sample)
        return sample

    def samples(self) -> list[Sample]:
        """Return the samples of the last hour, the oldest first."""
        if not self._fine:
            return []
        now = self._fine[-1][0]
        fine = [sample for sample in self._fine if sample[0] > now - _FINE]
        return [sample for sample in self._coarse if now - HOUR < sample[0] < fine[0][0]] + fine


def sample_of(snapshot: Snapshot) -> Sample:
    """Return the counts of a snapshot: sums over its services, the mean of their medians by calls, and the highest p99."""
    services = snapshot.services
    calls = sum(service.calls_per_s for service in services)
    busy = [service for service in services if service.calls_per_s > 0 and service.p50_ms is not None]
    weight = sum(service.calls_per_s for service in busy)
    return (
        round(snapshot.at, 3),
        sum(service.queued for service in services),
        sum(service.running for service in services),
        round(calls, 3),
        round(sum(service.failures_per_s for service in services), 3),
        round(sum((service.p50_ms or 0.0) * service.calls_per_s for service in busy) / weight, 3) if busy else None,
        round(max(service.p99_ms or 0.0 for service in busy), 3) if busy else None,
        len(snapshot.instances),
        sum(1 for service in services if service.live),
        sum(service.dead for service in services),
        len(snapshot.confirmations),
    )


class Audience:
    """The rows of the tools that one kind of principal sees."""

    def __init__(self, bus: ToolBus, principal: Principal) -> None:
        self._view: ToolView = principal.sees(bus)
        self._version = -1
        self._made: dict[str, tuple[Tool, CatalogueRow]] = {}
        self.rows: dict[str, CatalogueRow] = {}
        self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Look at the catalogue, and return what has changed in it since the last time."""
        version = self._view.catalogue.version
        if version == self._version:
            return {}
        self._version = version
        before, self._made = self._made, {}
        for name, tool in self._view.items():
            known = before.get(name)
            # Tools are immutable: a row is made anew only for another tool.
            if known is None or known[0] is not tool:
                text = " ".join(tool.descriptor.description[: 2 * _MOST_TEXT].split())[:_MOST_TEXT]
                known = tool, CatalogueRow(name, tool.service, text, tool.category, tool.groups, tool.available, tool.digest)
            self._made[name] = known
        rows = {name: row for name, (_, row) in self._made.items()}
        found = changes({"catalogue": self.rows}, {"catalogue": rows})
        self.rows = rows
        return found


WATCHED = 1.0
"""Seconds between two samples while somebody looks."""

UNWATCHED = 15.0
"""Seconds between two samples while nobody does."""

_CATALOGUE = 0.2
_MOST_PENDING = 4_194_304
_encode = msgspec.json.Encoder().encode


def event(name: str, document: Any) -> bytes:
    """Return a server-sent event."""
    return named_event(name.encode(), _encode(document))


class Watcher:
    """One open page: the events that it has not read yet."""

    def __init__(self, principal: Principal, audience: Audience) -> None:
        self.principal = principal
        self.audience = audience
        self.stale = True
        self._pending: list[bytes] = []
        self._size = 0
        # Set while there is what the page has not read, or when it is to go.
        self.news = asyncio.Event()
        self.news.set()

    @property
    def observes(self) -> bool:
        """True if it sees what operators read, and not its own tools alone."""
        return "observe" in self.principal.may

    def put(self, data: bytes) -> None:
        """Add an event. A page that reads too slowly gets the whole state later in place of all its changes."""
        if self.stale:
            return
        self._pending.append(data)
        self._size += len(data)
        if self._size > _MOST_PENDING:
            self.stale = True
            self.take()
        self.news.set()

    def take(self) -> bytes:
        """Return what is pending, and forget it."""
        data = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self.news.clear()
        return data

    async def wait(self, seconds: float) -> bool:
        """Wait for news; False when there were none within ``seconds``."""
        await at_most(seconds, self.news.wait())
        return self.news.is_set()


class Board:
    """The state of the namespace as the page shows it, and who looks at it.

    Args:
        bus: the gateway's bus, which is open while the board runs.
        sampler: takes the snapshots.

    Attributes:
        history: the counts of the last hour.
        closed: whether pages are to leave.
    """

    def __init__(self, bus: ToolBus, sampler: Watch) -> None:
        self._bus = bus
        self._sampler = sampler
        self._sections: Sections = {}
        self._problems: list[str] = []
        self._silent: tuple[str, ...] = ()
        # Whether what pages show can't be read any more.
        self._away = False
        self._at = time.time()
        self._audiences: dict[Hashable, Audience] = {}
        self._watchers: set[Watcher] = set()
        self._looked = asyncio.Event()
        self.history = History()
        self.closed = False

    def close(self) -> None:
        """Let every page go, which comes back when the gateway does."""
        self.closed = True
        for watcher in self._watchers:
            watcher.news.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the board up to date within the ``async with``."""
        async with asyncio.TaskGroup() as tasks:
            started = [
                tasks.create_task(keep_running("page samples", self._sample, every=WATCHED)),
                tasks.create_task(keep_running("page catalogue", self._follow, every=_CATALOGUE)),
            ]
            try:
                yield
            finally:
                for task in started:
                    task.cancel()

    @contextlib.contextmanager
    def watched(self, principal: Principal) -> Iterator[Watcher]:
        """Yield a ``Watcher`` that gets every change within the ``with``."""
        key = principal.sight
        audience = self._audiences.get(key)
        if audience is None:
            audience = self._audiences[key] = Audience(self._bus, principal)
        watcher = Watcher(principal, audience)
        self._watchers.add(watcher)
        self._looked.set()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not any(each.audience is audience for each in self._watchers):
                self._audiences.pop(key, None)

    def news(self, watcher: Watcher) -> bytes:
        """Return what a page has not heard of yet: changes, or the whole state."""
        if not watcher.stale:
            return watcher.take()
        watcher.stale = False
        watcher.take()
        document: dict[str, Any] = {
            "me": {
                "name": watcher.principal.name,
                "may": sorted(watcher.principal.may),
                "namespace": self._bus.settings.namespace,
                "version": version("toolbus"),
            },
            "now": self._at,
            "catalogue": {"set": list(watcher.audience.rows.values())},
        }
        if watcher.observes:
            document |= {section: {"set": list(rows.values())} for section, rows in self._sections.items()}
            document |= {"history": self.history.samples(), "problems": self._problems, "silent": self._silent}
            document["away"] = self._away
        return event("snapshot", document)

    # -- inside -----------------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            self._looked.clear()
            began = time.monotonic()
            await self._sample_once()
            pause = WATCHED if any(watcher.observes for watcher in self._watchers) else UNWATCHED
            # What takes long is not done more often than half of the time.
            left = max(pause - (time.monotonic() - began), (time.monotonic() - began))
            if pause == UNWATCHED:
                await at_most(left, self._looked.wait())
            else:
                await asyncio.sleep(left)

    async def _sample_once(self) -> None:
        change: dict[str, Any]
        try:
            snapshot = await self._sampler.sample()
        except (ToolbusError, OSError) as error:
            problems = [f"the state of the namespace can't be read: {error}"]
            change = {} if problems == self._problems else {"problems": problems, "silent": self._silent, "away": True}
            self._problems, self._away = problems, True
        else:
            sections = sections_of(snapshot, self._bus.refused)
            change = changes(self._sections, sections)
            self._sections = sections
            self._at = snapshot.at
            change |= {"now": snapshot.at, "sample": self.history.add(snapshot)}
            problems = [*snapshot.faults, *snapshot.problems]
            if problems != self._problems or snapshot.silent != self._silent:
                change |= {"problems": problems, "silent": snapshot.silent, "away": False}
            self._problems, self._silent, self._away = problems, snapshot.silent, False
        if change:
            self._send(event("change", change), self._observers())

    async def _follow(self) -> None:
        """Tell of changes of the catalogue a few times a second, however many there are."""
        presets = -1
        while True:
            for audience in list(self._audiences.values()):
                change = audience.refresh()
                if change:
                    self._send(event("change", change), (watcher for watcher in self._watchers if watcher.audience is audience))
            catalogue = self._bus.tools.catalogue
            if presets not in {-1, catalogue.presets_version}:
                self._send(event("change", {"presets": catalogue.presets_version}), self._observers())
            presets = catalogue.presets_version
            await asyncio.sleep(_CATALOGUE)

    def _observers(self) -> Iterator[Watcher]:
        return (watcher for watcher in self._watchers if watcher.observes)

    def _send(self, data: bytes, watchers: Iterable[Watcher]) -> None:
        for watcher in watchers:
            watcher.put(data)


HEARTBEAT = 5.0
"""Longest silence in seconds; the page counts the gateway as away after twice as long."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


async def events(asked: Admitted[None]) -> Response:
    """Answer a stream of a ``snapshot`` and the ``change`` events that follow it."""
    board: Board | None = getattr(asked.request.app.state, "board", None)
    if board is None:
        raise Problem(503, "unavailable", "this application was started without its lifespan, which keeps the page up to date")
    return StreamingResponse(_events(board, asked.principal), 200, _HEADERS, EVENTS)


async def _events(board: Board, principal: Principal) -> AsyncIterator[bytes]:
    with board.watched(principal) as watcher:
        while not board.closed:
            news = await watcher.wait(HEARTBEAT)
            yield board.news(watcher) if news else COMMENT


RECENT = 300
"""Recent attempts of calls that the page shows."""


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep the page's board up to date while the application runs."""
    gateway: Gateway = app.state.gateway
    async with Watch(gateway.settings, calls=RECENT) as watch:
        app.state.board = Board(gateway.bus, watch)
        closing = asyncio.create_task(_close(gateway, app.state.board))
        try:
            async with app.state.board.running():
                yield
        finally:
            closing.cancel()


async def _close(gateway: Gateway, board: Board) -> None:
    """Let the pages go when the gateway is told to stop; it would wait for them otherwise."""
    await gateway.draining.wait()
    board.close()
