"""The iterators that wait for new confirmation requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from toolbus.confirmations import ConfirmationRequest


class Watchers:
    """Wakes the iterators over new requests; they look for what they have not told yet."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    def look(self) -> None:
        """Look again: something may have changed."""
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """End the iterators."""
        self._closed = True
        self.look()

    async def watch(self, look: Callable[[], Awaitable[list[ConfirmationRequest]]]) -> AsyncIterator[ConfirmationRequest]:
        """Yield each request that ``look`` finds, once."""
        event = asyncio.Event()
        self._waiting.add(event)
        told: set[str] = set()
        try:
            while not self._closed:
                event.clear()
                open_now = await look()
                # Forget requests that are not open any more.
                told &= {request.id for request in open_now}
                for request in open_now:
                    if request.id not in told:
                        told.add(request.id)
                        yield request
                await event.wait()
        finally:
            self._waiting.discard(event)
