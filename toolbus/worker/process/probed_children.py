"""``ProbedChildren``: the worker processes of a supervisor, for probes: asked one by one, and told as one."""

from __future__ import annotations

import asyncio

import msgspec

from toolbus.worker.process.lifeline import Told
from toolbus.worker.process.load import Load
from toolbus.worker.process.report import ProcessCounts, Report, ended, summed
from toolbus.worker.process.scaling import Bounds
from toolbus.worker.process.worker_metrics import worker_metrics

CHILD_HOST = "127.0.0.1"
"""The address at which children answer their supervisor."""

_PATIENCE = 2.0
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
            async with asyncio.timeout(_PATIENCE):
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
