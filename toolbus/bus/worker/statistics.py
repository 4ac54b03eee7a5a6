"""Counts of what a worker has run, for those who ask, and which ends are told of as recent calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolbus.bus.broker.protocols import Ending
from toolbus.bus.broker.statistics.answers import BOUNDS, BUCKETS, LastError, ToolStatistics
from toolbus.bus.support.display import shortened
from toolbus.bus.values.encoding import exact_text
from toolbus.bus.values.results import ErrorInfo

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

SECONDS = tuple(bound / 1000 for bound in BOUNDS)
"""Upper bounds of the latency buckets, in seconds."""

_MOST_MESSAGE = 400
# Kinds of errors are few; a type that a handler makes up is counted as the rest.
_MOST_TYPES = 20


class ToolCounts:
    """The counts of one tool in this process. Most ends of runs add to ``buckets`` and ``seconds`` alone.

    Attributes:
        buckets: ended attempts by latency, without the cancelled ones.
        seconds: how long all of them ran.
        failed: attempts that failed, by the error's type.
        refused: requests that were answered without being run, by the error's type.
        cancelled: attempts that were cancelled or let go of.
    """

    __slots__ = ("_last", "buckets", "cancelled", "failed", "refused", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.seconds = 0.0
        self.failed: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.cancelled = 0
        self._last: tuple[float, ErrorInfo, str] | None = None

    def fail(self, error: ErrorInfo, call: str) -> None:
        """Count a failure of an attempt whose latency is in ``buckets``."""
        _count(self.failed, error.type)
        self._last = time.time(), error, call

    def refuse(self, error: ErrorInfo, call: str) -> None:
        """Count a request that was answered without being run."""
        _count(self.refused, error.type)
        self._last = time.time(), error, call

    def statistics(self, service: str, tool: str, running: int) -> ToolStatistics | None:
        """Return the counts; None when there were no calls."""
        ended = sum(self.buckets)
        if not (ended or self.cancelled or self.refused or running):
            return None
        return ToolStatistics(
            service,
            tool,
            started=ended + self.cancelled + running,
            succeeded=ended - sum(self.failed.values()),
            failed=dict(self.failed),
            cancelled=self.cancelled,
            refused=dict(self.refused),
            running=running,
            total_ms=round(self.seconds * 1000, 3),
            buckets=tuple(self.buckets[: max((at for at, count in enumerate(self.buckets, 1) if count), default=0)]),
            last_error=self._last_error(),
        )

    def _last_error(self) -> LastError | None:
        if self._last is None:
            return None
        at, error, call = self._last
        # A refusal of arguments quotes them.
        message = "" if error.type == "invalid_arguments" else shortened(exact_text(error.message), _MOST_MESSAGE)
        return LastError(at, error.type, shortened(exact_text(error.code), _MOST_MESSAGE), message, call)


def _count(counts: dict[str, int], kind: str) -> None:
    kind = kind if kind in counts or len(counts) < _MOST_TYPES else "other"
    counts[kind] = counts.get(kind, 0) + 1


# A person reads a few of them. A second, in the long run:
_RATE = 10.0
_BURST = 20
_BURST_OF_FAILURES = 50


class Sampling:
    """Admits so many attempts a second, those that failed apart from those that succeeded.

    Args:
        take: takes in what is told of.
        enabled: whether anything is.

    Attributes:
        due: from when on (monotonic seconds) the next success is told of; a run compares that first, and most get no further.
    """

    __slots__ = ("_failures_due", "_failures_full", "_full", "_take", "due")

    def __init__(self, take: Callable[[Delivery, Ending], None], *, enabled: bool) -> None:
        self._take = take
        self.due = self._failures_due = 0.0 if enabled else math.inf
        # When all that was admitted will have been made up for.
        self._full = self._failures_full = 0.0

    def note_success(self, delivery: Delivery, started: float, first: float, now: float) -> None:
        """Tell of a success that is ``due``."""
        self._full = max(self._full, now) + 1 / _RATE
        self.due = self._full - _BURST / _RATE
        self._take(delivery, Ending("succeeded", started, first, now, None))

    def note(self, delivery: Delivery, ending: Ending) -> None:
        """Tell of another end than a success, unless there were too many."""
        now = ending.ended
        if now < self._failures_due:
            return
        self._failures_full = max(self._failures_full, now) + 1 / _RATE
        self._failures_due = self._failures_full - _BURST_OF_FAILURES / _RATE
        self._take(delivery, ending)
