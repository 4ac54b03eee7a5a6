"""One timer for many deadlines: a timer per call would cost more than the call."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class Deadlines:
    """Calls back when monotonic times pass, to within one ``tick`` (seconds), from a single loop timer.

    Adding and removing cost a dict operation each. Callbacks run in the event
    loop, never early and at most about one tick late; one that raises goes to the
    loop's exception handler. Without deadlines there is no timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: float = 0.02) -> None:
        self._loop = loop
        self._tick = tick
        # A bucket per tick; emptied buckets stay until their time, so the heap holds each slot once.
        self._buckets: dict[int, dict[object, Callable[[], None]]] = {}
        self._slots: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, when: float, key: object, callback: Callable[[], None]) -> int:
        """Arrange for ``callback`` at loop time ``when``; returns the slot to give to ``remove``."""
        slot = int(when / self._tick) + 1
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = {}
            heapq.heappush(self._slots, slot)
            if self._slots[0] == slot:
                self._arm(slot)
        bucket[key] = callback
        return slot

    def remove(self, slot: int, key: object) -> None:
        """Forget a deadline; unknown ones are ignored."""
        bucket = self._buckets.get(slot)
        if bucket is not None:
            bucket.pop(key, None)

    def close(self) -> None:
        """Forget every deadline."""
        for bucket in self._buckets.values():
            bucket.clear()
        self._buckets.clear()
        self._slots.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(slot * self._tick, self._turn)

    def _turn(self) -> None:
        self._timer = None
        # The loop may wake a clock resolution early; what is due by half a tick from now is due.
        now = int(self._loop.time() / self._tick + 0.5)
        due: list[int] = []
        while self._slots and self._slots[0] <= now:
            due.append(heapq.heappop(self._slots))
        for slot in due:
            self._call_all(slot)
        if self._slots:
            self._arm(self._slots[0])

    def _call_all(self, slot: int) -> None:
        # The bucket stays in its place meanwhile, so that a callback can still remove what is due in the same turn.
        bucket = self._buckets.get(slot, {})
        for key in list(bucket):
            callback = bucket.pop(key, None)
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - one bad callback must not keep the others from being called
                self._loop.call_exception_handler({"message": "a deadline's callback raised", "exception": error})
        if bucket:
            heapq.heappush(self._slots, slot)
        else:
            self._buckets.pop(slot, None)
