"""``Sampling``: which ends of attempts are told of as recent calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolbus.bus.broker.protocols import Ending

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

# A person reads a few of them. A second, in the long run:
_RATE = 10.0
_BURST = 20
_BURST_OF_FAILURES = 50


class Sampling:
    """Admits so many attempts a second, those that failed apart from those that succeeded.

    Args:
        note: takes in what is told of.
        enabled: whether anything is.

    Attributes:
        due: from when on (monotonic seconds) the next success is told of; a run compares that first, and most get no further.
    """

    __slots__ = ("_failures_due", "_failures_full", "_full", "_note", "due")

    def __init__(self, note: Callable[[Delivery, Ending], None], *, enabled: bool) -> None:
        self._note = note
        self.due = self._failures_due = 0.0 if enabled else math.inf
        # When all that was admitted will have been made up for.
        self._full = self._failures_full = 0.0

    def tell_success(self, delivery: Delivery, started: float, first: float, now: float) -> None:
        """Tell of a success that is ``due``."""
        self._full = max(self._full, now) + 1 / _RATE
        self.due = self._full - _BURST / _RATE
        self._note(delivery, Ending("succeeded", started, first, now, None))

    def tell(self, delivery: Delivery, ending: Ending) -> None:
        """Tell of another end than a success, unless there were too many."""
        now = ending.ended
        if now < self._failures_due:
            return
        self._failures_full = max(self._failures_full, now) + 1 / _RATE
        self._failures_due = self._failures_full - _BURST_OF_FAILURES / _RATE
        self._note(delivery, ending)
