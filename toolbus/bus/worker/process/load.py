"""``Load``: how busy one worker process is, as it measures that itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

EVERY = 0.5
"""Seconds between two reports of a process."""

TICK = 0.02
"""Seconds between two samples."""

# Seconds by which a sample of a loop that nothing holds may be late.
_LATE = 0.005


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of one worker process since its last report.

    Attributes:
        slots: how many calls may run at once.
        running: how many ran, on average.
        sessions: open ones.
        held: requests that it has taken and not answered.
        full: share of the time in which no slot was free.
        blocked: share of the time for which something held the event loop, without the time in which the loop waited for a processor.
        cpu: processor time as a share of one core.
        depth: requests of its services, queued and running, as the server last told it; -1 when no call ended, so that it told nothing.
    """

    slots: int = 1
    running: float = 0.0
    sessions: int = 0
    held: int = 0
    full: float = 0.0
    blocked: float = 0.0
    cpu: float = 0.0
    depth: int = -1

    @property
    def use(self) -> float:
        """The share of the process that is in use, from 0 to 1: of its slots, of its event loop, or of a core, whichever is more."""
        return min(1.0, max(self.running / max(1, self.slots), self.full, self.blocked, self.cpu))


def processor_queue() -> Callable[[], float]:
    """Return what tells for how many seconds the main thread was ready to run and had no processor; 0 where the system does not say."""
    try:
        # It stays open: a path that is looked up fifty times a second would cost more than everything else here.
        file = os.open("/proc/self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0.0

    def seconds() -> float:
        try:
            return int(os.pread(file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    return seconds


class LoadMeter:
    """Measures the load of a worker by samples, which its event loop takes fifty times a second.

    A sample that comes late was held up: it stands for all the samples that were due meanwhile.

    Args:
        statistics: returns the counts of an open worker.
        clock, cpu: return monotonic seconds, and seconds of processor time.
        queued: returns the seconds for which the loop's thread was ready to run and had no processor; None for what the system tells.
    """

    def __init__(
        self,
        statistics: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        queued: Callable[[], float] | None = None,
    ) -> None:
        self._statistics = statistics
        self._clock, self._cpu, self._queued = clock, cpu, queued or processor_queue()
        self._waited = self._queued()
        self._since = self._sampled = clock()
        self._used = cpu()
        self._samples = self._running = self._full = self._held = 0
        self._finished = statistics()["finished"]

    def sample(self) -> None:
        """Take a sample; call it a tick after the last one, as nearly as the event loop allows."""
        now, waited = self._clock(), self._queued()
        late = now - self._sampled - TICK
        # A machine without a free processor would not be quicker with one more process.
        held = late - (waited - self._waited)
        self._sampled, self._waited = now, waited
        counts = self._statistics()
        due = 1 + int(max(0.0, late) / TICK)
        self._samples += due
        self._running += due * counts["running"]
        self._full += due * (counts["free"] < 1)
        self._held += min(due, 1 + int(held / TICK)) if held > _LATE else 0

    @property
    def due(self) -> bool:
        """True when it is time for a report."""
        return self._sampled - self._since >= EVERY - TICK / 2

    def report(self) -> Load:
        """Return the load since the last report, and begin anew."""
        counts, used = self._statistics(), self._cpu()
        elapsed = max(self._sampled - self._since, 1e-6)
        samples = max(1, self._samples)
        ended = counts["finished"] != self._finished
        load = Load(
            slots=counts["running"] + counts["free"],
            running=round(self._running / samples, 2),
            sessions=counts["sessions"],
            held=counts["held"],
            full=round(self._full / samples, 3),
            blocked=round(self._held / samples, 3),
            cpu=round((used - self._used) / elapsed, 3),
            depth=counts.get("depth", -1) if ended else -1,
        )
        self._since, self._used, self._finished = self._sampled, used, counts["finished"]
        self._samples = self._running = self._full = self._held = 0
        return load
