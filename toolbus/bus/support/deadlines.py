"""Serve many deadlines from one timer, since a timer per call would cost more than the call."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class Deadlines:
    """Call functions when their deadlines pass, all from a single loop timer with a resolution of ``tick`` seconds.

    Adding and removing cost one dict operation each. Callbacks run in the event
    loop, never early and at most about one tick late; an exception goes to the
    loop's exception handler. While there are no deadlines there is no timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: float = 0.02) -> None:
        self._loop = loop
        self._tick = tick
        # One bucket per tick. An emptied bucket stays until its time, so the heap holds each slot once.
        self._buckets: dict[int, dict[object, Callable[[], None]]] = {}
        self._slots: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, when: float, key: object, callback: Callable[[], None]) -> int:
        """Call ``callback`` at loop time ``when``; return the slot that ``remove`` needs."""
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
        # The loop may wake early by its clock's resolution, so round to the nearest tick.
        now = int(self._loop.time() / self._tick + 0.5)
        due: list[int] = []
        while self._slots and self._slots[0] <= now:
            due.append(heapq.heappop(self._slots))
        for slot in due:
            self._call_all(slot)
        if self._slots:
            self._arm(self._slots[0])

    def _call_all(self, slot: int) -> None:
        # The bucket stays in place during the calls, so that a callback can still remove another that is due in the same turn.
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
