"""``Board``: what the page shows, sampled by the gateway and told to everybody who looks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.metadata import version
from typing import Any, Protocol

import msgspec

from toolbus.background import keep_running
from toolbus.client.bus import ToolBus
from toolbus.gateway.page.audience import Audience, AudienceKey, audience_key
from toolbus.gateway.page.history import History
from toolbus.gateway.page.rows import Sections, changes, sections_of
from toolbus.gateway.principals import Principal
from toolbus.gateway.sse import named_event
from toolbus.results import ToolbusError
from toolbus.watch.views import Snapshot

WATCHED = 1.0
"""Seconds between two samples while somebody looks."""

UNWATCHED = 15.0
"""Seconds between two samples while nobody does."""

_CATALOGUE = 0.2
_MOST_PENDING = 4_194_304
_encode = msgspec.json.Encoder().encode


class Sampler(Protocol):
    """Takes snapshots of a namespace."""

    async def sample(self) -> Snapshot:
        """Return the state of the namespace now.

        Raises:
            ToolbusError: it can't be read.
        """


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
        self._news = asyncio.Event()
        self._news.set()

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
        self._news.set()

    def take(self) -> bytes:
        """Return what is pending, and forget it."""
        data = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._news.clear()
        return data

    def poke(self) -> None:
        """Let ``wait`` return."""
        self._news.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for news; False when there were none within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class Board:
    """The state of the namespace as the page shows it, and who looks at it.

    Args:
        bus: the gateway's bus, which is open while the board runs.
        sampler: takes the snapshots.

    Attributes:
        history: the counts of the last hour.
        closed: whether pages are to leave.
    """

    def __init__(self, bus: ToolBus, sampler: Sampler) -> None:
        self._bus = bus
        self._sampler = sampler
        self._sections: Sections = {}
        self._problems: list[str] = []
        self._silent: tuple[str, ...] = ()
        self._at = time.time()
        self._audiences: dict[AudienceKey, Audience] = {}
        self._watchers: set[Watcher] = set()
        self._looked = asyncio.Event()
        self.history = History()
        self.closed = False

    def close(self) -> None:
        """Let every page go, which comes back when the gateway does."""
        self.closed = True
        for watcher in self._watchers:
            watcher.poke()

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
        key = audience_key(principal)
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
            "me": self._me(watcher.principal),
            "now": self._at,
            "catalogue": {"set": list(watcher.audience.rows.values())},
        }
        if watcher.observes:
            document |= {section: {"set": list(rows.values())} for section, rows in self._sections.items()}
            document |= {"history": self.history.samples(), "problems": self._problems, "silent": self._silent}
        return event("snapshot", document)

    # -- inside -----------------------------------------------------------------------------------

    def _me(self, principal: Principal) -> dict[str, Any]:
        return {
            "name": principal.name,
            "may": sorted(principal.may),
            "namespace": self._bus.settings.namespace,
            "version": version("toolbus"),
        }

    async def _sample(self) -> None:
        while True:
            self._looked.clear()
            began = time.monotonic()
            await self._sample_once()
            pause = WATCHED if any(watcher.observes for watcher in self._watchers) else UNWATCHED
            # What takes long is not done more often than half of the time.
            left = max(pause - (time.monotonic() - began), (time.monotonic() - began))
            if pause == UNWATCHED:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._looked.wait()
            else:
                await asyncio.sleep(left)

    async def _sample_once(self) -> None:
        change: dict[str, Any]
        try:
            snapshot = await self._sampler.sample()
        except (ToolbusError, OSError) as error:
            problems = [f"the state of the namespace can't be read: {error}"]
            change = {} if problems == self._problems else {"problems": problems, "silent": self._silent}
            self._problems = problems
        else:
            sections = sections_of(snapshot, self._bus.refused)
            change = changes(self._sections, sections)
            self._sections = sections
            self._at = snapshot.at
            change |= {"now": snapshot.at, "sample": self.history.add(snapshot)}
            problems = list(snapshot.problems)
            if problems != self._problems or snapshot.silent != self._silent:
                change |= {"problems": problems, "silent": snapshot.silent}
            self._problems, self._silent = problems, snapshot.silent
        if change:
            self._tell(event("change", change), self._observers())

    async def _follow(self) -> None:
        """Tell of changes of the catalogue a few times a second, however many there are."""
        presets = -1
        while True:
            for audience in list(self._audiences.values()):
                change = audience.refresh()
                if change:
                    self._tell(event("change", change), (watcher for watcher in self._watchers if watcher.audience is audience))
            catalogue = self._bus.tools.catalogue
            if presets not in {-1, catalogue.presets_version}:
                self._tell(event("change", {"presets": catalogue.presets_version}), self._observers())
            presets = catalogue.presets_version
            await asyncio.sleep(_CATALOGUE)

    def _observers(self) -> Iterator[Watcher]:
        return (watcher for watcher in self._watchers if watcher.observes)

    def _tell(self, data: bytes, watchers: Iterable[Watcher]) -> None:
        for watcher in watchers:
            watcher.put(data)
