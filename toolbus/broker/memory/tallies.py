"""The tallies of one event loop, for ``memory://``."""

from __future__ import annotations

import time

from toolbus.broker.limits import MOST_PAIRS, OTHERS, add_to, days_back, pair_of, rows
from toolbus.broker.protocols import Usage

_MOST_KEPT = 10_000


class MemoryTallies:
    """The tallies of a namespace within one event loop."""

    def __init__(self) -> None:
        self._full: dict[str, float] = {}
        self._used: dict[str, tuple[int, int]] = {}
        self._usage: dict[str, dict[str, list[int]]] = {}

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate; returns 0 when there was room, else the seconds until there is."""
        now = time.monotonic()
        full = max(self._full.get(name, 0.0), now) + period / limit
        wait = full - period - now
        # A rounding error is no wait: the limit is about whole intervals.
        if wait > 1e-6:
            return wait
        if len(self._full) >= _MOST_KEPT:
            self._full = {key: value for key, value in self._full.items() if value > now}
        self._full[name] = full
        return 0.0

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota; returns 0 when there was some left, else the seconds until it starts anew."""
        now = time.time()
        current = int(now // period)
        before, used = self._used.get(name, (current, 0))
        used = used if before == current else 0
        if used >= limit:
            return period - now % period
        if len(self._used) >= _MOST_KEPT:
            self._used.pop(next(iter(self._used)))
        self._used[name] = current, used + 1
        return 0.0

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage."""
        today = self._usage.setdefault(next(iter(days_back(1))), {})
        pair = pair_of(user, tool)
        if len(today) >= MOST_PAIRS and pair not in today:
            pair = OTHERS
        add_to(today.setdefault(pair, [0, 0, 0, 0]), ms, size, failed=failed)

    async def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days, by user and tool."""
        found: dict[str, list[int]] = {}
        for day in days_back(days):
            for pair, counts in self._usage.get(day, {}).items():
                total = found.setdefault(pair, [0, 0, 0, 0])
                total[:] = [one + other for one, other in zip(total, counts, strict=True)]
        return rows(found)
