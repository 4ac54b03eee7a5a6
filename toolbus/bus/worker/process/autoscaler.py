"""``Autoscaler``: gives a supervisor as many worker processes as their load asks for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.worker.process.lifeline import Told
from toolbus.bus.worker.process.load import EVERY, TICK, Load, LoadMeter

if TYPE_CHECKING:
    from toolbus.bus.worker.process.supervisor import Supervisor
    from toolbus.bus.worker.worker import Worker


class Bounds(NamedTuple):
    """The fewest and the most processes."""

    least: int
    most: int


class Rules(NamedTuple):
    """The numbers of the decision.

    Attributes:
        high: share of each process that should be in use at most.
        low: share of each process that should be in use at least.
        rise: seconds for which more processes must be wanted before any is started.
        fall: seconds for which fewer must do before any goes.
        growth: processes for each present one at most.
    """

    high: float = 0.7
    low: float = 0.5
    rise: float = 1.0
    fall: float = 30.0
    growth: int = 2


RULES = Rules()


class Wanted(NamedTuple):
    """The decision: how many processes, and what it comes from.

    Attributes:
        processes: how many should run.
        use: processes in use, as the sum of their shares.
        backlog: requests that wait for a free slot.
    """

    processes: int
    use: float
    backlog: int


class _Lasting(NamedTuple):
    """Since when the number was to change in one direction, and the smallest change that was wanted in that time."""

    since: float
    wanted: int


class Scaling:
    """Decides again and again; it remembers for how long more or fewer processes were wanted.

    Args:
        bounds: the fewest and the most.
        rules: the numbers.
    """

    def __init__(self, bounds: Bounds, rules: Rules = RULES) -> None:
        self._bounds = bounds
        self._rules = rules
        self._rising: _Lasting | None = None
        self._falling: _Lasting | None = None

    def decide(self, now: float, processes: int, loads: Sequence[Load], *, starting: bool = False) -> Wanted:
        """Return how many processes should run.

        Args:
            now: monotonic seconds.
            processes: how many should run until now.
            loads: of those that serve.
            starting: whether some of them do not serve yet: until they do, nothing changes.
        """
        use, backlog = sum(load.use for load in loads), backlog_of(loads)
        if starting:
            self._rising = self._falling = None
            return Wanted(processes, use, backlog)
        more, fewer = self._more(processes, loads, backlog), self._fewer(processes, use)
        self._rising = _lasting(self._rising, now, more, min) if more > processes else None
        self._falling = _lasting(self._falling, now, fewer, max) if fewer < processes else None
        wanted = processes
        if self._rising is not None and now - self._rising.since >= self._rules.rise:
            wanted = self._rising.wanted
        elif self._falling is not None and now - self._falling.since >= self._rules.fall:
            wanted = self._falling.wanted
        if wanted != processes:
            self._rising = self._falling = None
        return Wanted(wanted, use, backlog)

    def _more(self, processes: int, loads: Sequence[Load], backlog: int) -> int:
        """Return how many processes keep each of them below the upper share."""
        wanted = _ceil(sum(load.use for load in loads) / self._rules.high)
        if backlog:
            slots = sum(load.slots for load in loads) / len(loads)
            wanted = max(wanted, _ceil((sum(load.running for load in loads) + backlog) / (slots * self._rules.high)))
        return max(self._bounds.least, min(wanted, processes * self._rules.growth, self._bounds.most))

    def _fewer(self, processes: int, use: float) -> int:
        """Return how many processes keep each of them at the lower share; at least half of those that run."""
        return min(self._bounds.most, max(self._bounds.least, _ceil(use / self._rules.low), (processes + 1) // 2))


def backlog_of(loads: Sequence[Load]) -> int:
    """Return how many requests wait for a free slot.

    The server tells how many requests of a service there are, wherever they run. So what these processes have not taken counts only
    while they had no free slot: otherwise others have it.
    """
    if not any(load.full for load in loads):
        return 0
    return max(0, max(load.depth for load in loads) - sum(load.held for load in loads))


def _lasting(before: _Lasting | None, now: float, wanted: int, least: Callable[[int, int], int]) -> _Lasting:
    return _Lasting(now, wanted) if before is None else _Lasting(before.since, least(before.wanted, wanted))


def _ceil(number: float) -> int:
    # What lies above a whole number by an error of rounding is that number.
    return math.ceil(number - 1e-9)


# Seconds without a report after which a process counts as one whose event loop is held.
_SILENT = 4 * EVERY
# Seconds for which a process that starts, or starts again, puts off decisions.
_STARTING = 10.0


class _Heard(NamedTuple):
    """The last report of a process, and when it came."""

    at: float
    load: Load


class Autoscaler:
    """Hears the loads of a supervisor's children, whose ``ChildWatcher`` it is, and resizes it.

    Args:
        bounds: the fewest and the most processes.
        rules: the numbers of the decision.
        clock: returns monotonic seconds.
    """

    def __init__(self, bounds: Bounds, rules: Rules = RULES, clock: Callable[[], float] = time.monotonic) -> None:
        self._scaling = Scaling(bounds, rules)
        self._clock = clock
        self._heard: dict[int, _Heard] = {}
        # By slots whose process does not serve: since when.
        self._awaited: dict[int, float] = {}
        self._slots: frozenset[int] = frozenset()

    # -- ChildWatcher -----------------------------------------------------------------------------

    def serving(self, slot: int, told: Told) -> None:
        """Take in that a child serves; until its first report, nothing is in use."""
        if slot in self._slots:
            self._awaited.pop(slot, None)
            self._heard[slot] = _Heard(self._clock(), Load())

    def ended(self, slot: int) -> None:
        """Take in that a child has ended."""
        if self._heard.pop(slot, None) is not None:
            self._awaited[slot] = self._clock()

    def restarting(self) -> None:
        """Take in that a child is started again: ``ended`` has told it."""

    def reported(self, slot: int, load: Load) -> None:
        """Take in how busy a child is."""
        if slot in self._heard:
            self._heard[slot] = _Heard(self._clock(), load)

    def resized(self, slots: frozenset[int]) -> None:
        """Take in which slots there are."""
        for slot in slots - self._slots:
            self._awaited[slot] = self._clock()
        for slot in self._slots - slots:
            self._heard.pop(slot, None)
            self._awaited.pop(slot, None)
        self._slots = slots

    # -- the decision -----------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Decide twice a second until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self.step(supervisor)

    def step(self, supervisor: Supervisor) -> None:
        """Decide once, and add or dismiss processes."""
        now, before = self._clock(), len(self._slots)
        loads = {slot: _seen(heard, now) for slot, heard in self._heard.items()}
        starting = any(now - since < _STARTING for since in self._awaited.values())
        wanted = self._scaling.decide(now, before, list(loads.values()), starting=starting)
        for _ in range(wanted.processes - before):
            supervisor.add()
        # Sessions live in their process, so one that has any stays.
        leaving = sorted((load.running, -slot) for slot, load in loads.items() if not load.sessions)
        for _, slot in leaving[: max(0, before - wanted.processes)]:
            supervisor.dismiss(-slot)
        if len(self._slots) != before:
            _tell(before, len(self._slots), wanted)


def _seen(heard: _Heard, now: float) -> Load:
    return heard.load if now - heard.at < _SILENT else Load(slots=heard.load.slots, sessions=heard.load.sessions, blocked=1.0)


def _tell(before: int, processes: int, wanted: Wanted) -> None:
    telemetry.log.info("supervisor.scaled", processes=processes, before=before, use=round(wanted.use, 2), backlog=wanted.backlog)


class LoadReports:
    """Tells the parent of this process its load, from ``start`` to ``aclose``.

    Args:
        worker: not yet opened.
        lifeline: the child's end of the lifeline.
    """

    def __init__(self, worker: Worker, lifeline: int) -> None:
        self._worker = worker
        self._line = socket.socket(fileno=lifeline)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, once the worker is open."""
        self._task = asyncio.create_task(keep_running("load reports", self._run, every=TICK))

    async def aclose(self) -> None:
        """Tell nothing more."""
        # The descriptor is the lifeline's, which others use on.
        self._line.detach()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        meter = LoadMeter(self._worker.statistics)
        while True:
            await asyncio.sleep(TICK)
            meter.sample()
            if meter.due:
                self._tell(meter.report())

    def _tell(self, load: Load) -> None:
        # A parent that is stopped must not stop its children: what finds no room is left out.
        with contextlib.suppress(OSError):
            self._line.send(msgspec.json.encode(Told(load=load)) + b"\n", socket.MSG_DONTWAIT)


@contextlib.asynccontextmanager
async def load_reports(worker: Worker, lifeline: int | None) -> AsyncIterator[Callable[[], None]]:
    """Yield what begins to tell the parent this process's load; without a parent it does nothing."""
    if lifeline is None:
        yield lambda: None
        return
    reports = LoadReports(worker, lifeline)
    try:
        yield reports.start
    finally:
        await reports.aclose()
