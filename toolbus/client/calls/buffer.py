"""``EventBuffer``: the events of a call that wait for its one reader."""

from __future__ import annotations

import asyncio
from collections import deque

from toolbus.events import Event, Text, size_of

# Bytes that an event takes beside its text.
_EACH = 100


class EventBuffer:
    """Events in the order in which they are to be read.

    Attributes:
        events: appended to by the call itself, which then calls ``wake``.
        size: about how many bytes the events have.
        is_awaited: whether a reader waits.
    """

    __slots__ = ("_arrived", "events", "is_awaited", "size")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.size = 0
        self.is_awaited = False
        self._arrived: asyncio.Event | None = None

    def is_over(self, limit: int) -> bool:
        """Return whether more bytes than ``limit`` wait beside the newest event: one alone may be of any size, and is read next."""
        return self.size > limit and self.size - size_of(self.events[-1]) > limit

    @property
    def held(self) -> int:
        """About how many bytes of memory the events take, which may be small and many."""
        return self.size + _EACH * len(self.events)

    def put(self, event: Event) -> None:
        """Append one event, and wake the reader."""
        self.events.append(event)
        self.size += size_of(event)
        self.wake()

    def take(self) -> Event:
        """Remove and return the first event.

        Raises:
            IndexError: there is none.
        """
        event = self.events.popleft()
        self.size -= len(event.text) if type(event) is Text else size_of(event)
        return event

    def clear(self) -> None:
        """Drop every event, and wake the reader."""
        self.events.clear()
        self.size = 0
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._arrived is not None:
            self._arrived.set()

    async def arrival(self) -> None:
        """Wait until ``wake`` is called.

        Raises:
            RuntimeError: another task waits.
        """
        if self._arrived is None:
            self._arrived = asyncio.Event()
        if self.is_awaited:
            raise RuntimeError("somebody else waits for this call's events")
        self.is_awaited = True
        self._arrived.clear()
        try:
            await self._arrived.wait()
        finally:
            self.is_awaited = False
