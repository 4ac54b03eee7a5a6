"""The intake of one worker on fake connections."""

from __future__ import annotations

from typing import Any, cast

from tests.broker.fakes import SETTINGS, Bench, FakeLink, entry_fields, request
from toolbus.bus.broker.take.intake import Intake
from toolbus.bus.broker.transport.opening import Failing


class Restless(Intake, eq=False):
    """An intake that takes note of its pauses instead of waiting."""

    async def pause(self) -> None:
        """Take note."""
        await cast("Any", self.upkeep).pause()


class Taking:
    """The intake of one worker over two connections; it is the upkeep, the sessions and the callers' check at once."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.writing, self.blocking = bench.link, FakeLink()
        self.aborted = 0
        self.cast: Any = self
        # Upkeep.
        self.taking = True
        self.postponed = self.has_postponed = False
        self.did: list[str] = []
        # Ownership.
        self.serves = self.gaining = False
        self.again: list[list[str]] = []
        self.failing = Failing(SETTINGS.lease, "no requests could be taken", bench.as_listener.on_failed, bench.times)
        self.intake = self.made()
        self.found: list[list[Any]] = []
        self.blocking.answers["XREADGROUP"] = lambda keys, args: self.found.pop(0) if self.found else None
        self.blocking.abort = self.abort  # type: ignore[attr-defined]

    def made(self, kind: type[Intake] = Intake) -> Intake:
        """Return an intake of this worker."""
        return kind(*self.bench.own, self.cast, self.cast, self.cast, self.cast, self.register_again, self.failing)

    def start(self, work: Any) -> None:
        """Run beside the others."""
        self.bench.start(work)

    def abort(self) -> None:
        """Count."""
        self.aborted += 1

    async def pause(self) -> None:
        """Take note instead of waiting."""
        self.did.append("paused")

    async def reap_postponed(self) -> None:
        """Take note."""
        self.did.append("postponed")

    async def without(self, taken: list[Any]) -> list[Any]:
        """Keep everything."""
        self.did.append("checked")
        return taken

    async def settle(self, taken: list[Any]) -> list[Any]:
        """Take note."""
        self.did.append("settled")
        return taken

    async def register_again(self, services: list[str]) -> None:
        """Take note."""
        self.again.append(services)

    def entries(self, *numbers: int) -> list[Any]:
        """Return stream entries as a read brings them."""
        return [[entry, entry_fields(request(entry))] for entry in (f"{number}-0".encode() for number in numbers)]

    def two(self) -> None:
        """Serve a second stream."""
        self.bench.streams["other"] = self.bench.new_stream("other")
