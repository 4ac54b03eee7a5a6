"""``Autoscaler``: gives a supervisor as many worker processes as their load asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from toolbus import telemetry
from toolbus.worker.process.lifeline import Told
from toolbus.worker.process.load import EVERY, Load
from toolbus.worker.process.scaling import RULES, Bounds, Rules, Scaling, Wanted

# Seconds without a report after which a process counts as one whose event loop is held.
_SILENT = 4 * EVERY
# Seconds for which a process that starts, or starts again, puts off decisions.
_STARTING = 10.0


class Resizable(Protocol):
    """A supervisor, as far as the number of its children is concerned."""

    @property
    def slots(self) -> frozenset[int]:
        """The slots that are to have a child."""

    def add(self) -> None:
        """Start one more child."""

    def dismiss(self, slot: int) -> None:
        """Let the child of a slot drain and end for good."""


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

    async def run(self, supervisor: Resizable) -> None:
        """Decide twice a second until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self.step(supervisor)

    def step(self, supervisor: Resizable) -> None:
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
