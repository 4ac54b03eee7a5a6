"""One reader's changes of the catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Self

from toolbus.bus.client.tools.tool import ToolChange


class Subscription:
    """Changes that wait for one reader, at most one per tool."""

    def __init__(self, leave: Callable[[Subscription], None]) -> None:
        self._leave = leave
        self._waiting: dict[str, ToolChange] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._leave(self)

    def put(self, change: ToolChange) -> None:
        """Add a change, in place of an unread one of the same tool."""
        self._waiting.pop(change.name, None)
        self._waiting[change.name] = change
        self._arrived.set()

    def close(self) -> None:
        """End the iteration once what waits has been read."""
        self._closed = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[ToolChange]:
        while True:
            await self._arrived.wait()
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._closed:
                return
            self._arrived.clear()
