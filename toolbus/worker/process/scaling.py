"""``Scaling``: how many worker processes a machine should run, decided from the loads that they tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toolbus.worker.process.load import Load


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
