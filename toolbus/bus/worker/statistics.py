"""Counts of what a worker has run, for those who ask, and which ends are told of: a sample as recent calls, and all for a history."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

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


class ToolCounts(msgspec.Struct, eq=False):
    """The counts of one tool in this process. Most ends of runs add to ``buckets`` and ``seconds`` alone.

    Attributes:
        buckets: ended attempts by latency, without the cancelled ones.
        seconds: how long all of them ran.
        failed: attempts that failed, by the error's type.
        refused: requests that were answered without being run, by the error's type.
        cancelled: attempts that were cancelled or let go of.
    """

    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    seconds: float = 0.0
    failed: dict[str, int] = {}
    refused: dict[str, int] = {}
    cancelled: int = 0
    _last: tuple[float, ErrorInfo, str] | None = None

    def count(self, error: ErrorInfo, call: str, *, ran: bool) -> None:
        """Count a failure: of an attempt that ran, whose latency is in ``buckets``, or of a request that was answered without being run."""
        counts = self.failed if ran else self.refused
        kind = error.type if error.type in counts or len(counts) < _MOST_TYPES else "other"
        counts[kind] = counts.get(kind, 0) + 1
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


class _Take(Protocol):
    def __call__(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None: ...


class _Bucket:
    """Admits so many a second in the long run, and so many at once.

    Attributes:
        due: from when on (monotonic seconds) the next one is admitted.
    """

    __slots__ = ("_burst", "_full", "_step", "due")

    def __init__(self, rate: float, burst: int, *, enabled: bool) -> None:
        self._step = 1 / rate
        self._burst = burst * self._step
        self.due = 0.0 if enabled else math.inf
        # When all that was admitted will have been made up for.
        self._full = 0.0

    def admits(self, now: float) -> bool:
        """Return whether one is admitted now, and count it if it is."""
        if now < self.due:
            return False
        self._full = max(self._full, now) + self._step
        self.due = self._full - self._burst
        return True


# A person reads a few of the recent calls; the rate of the history keeps what it costs below a hundredth of a busy machine.
_SAMPLE, _SAMPLE_OF_FAILURES = (10.0, 20), (10.0, 50)
_HISTORY = _HISTORY_OF_FAILURES = (250.0, 1_000)


class Sampling:
    """Chooses which attempts are told of: so many a second for operators, and more for the history, failures apart from successes.

    Args:
        take: takes in what is told of, for whom, and how many were left out of the history since the last one in it.
        sampled: whether operators are told of any.
        kept: whether a history is kept.

    Attributes:
        due: from when on (monotonic seconds) the next success is told of; a run compares that first, and most get no further.
        left_out: attempts that the history has not been told of yet.
    """

    __slots__ = ("_history", "_history_of_failures", "_sample", "_sample_of_failures", "_take", "due", "left_out")

    def __init__(self, take: _Take, *, sampled: bool, kept: bool = False) -> None:
        self._take = take
        self._sample, self._sample_of_failures = _Bucket(*_SAMPLE, enabled=sampled), _Bucket(*_SAMPLE_OF_FAILURES, enabled=sampled)
        self._history, self._history_of_failures = _Bucket(*_HISTORY, enabled=kept), _Bucket(*_HISTORY_OF_FAILURES, enabled=kept)
        self.due = min(self._sample.due, self._history.due)
        self.left_out = 0

    def note_success(self, delivery: Delivery, started: float, first: float, now: float) -> None:
        """Tell of a success that is ``due``."""
        self._tell(delivery, Ending("succeeded", started, first, now, None), self._sample, self._history)
        self.due = min(self._sample.due, self._history.due)

    def note(self, delivery: Delivery, ending: Ending) -> None:
        """Tell of another end than a success, unless there were too many."""
        self._tell(delivery, ending, self._sample_of_failures, self._history_of_failures)

    def _tell(self, delivery: Delivery, ending: Ending, sample: _Bucket, history: _Bucket) -> None:
        sampled, kept = sample.admits(ending.ended), history.admits(ending.ended)
        if sampled or kept:
            self._take(delivery, ending, sampled=sampled, kept=kept, left_out=self.left_out)
        self.left_out = 0 if kept else self.left_out + 1
