"""``Relay``: pass on what a call of a pool streams, as the items of a handler."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from toolbus.backends.runner import Output
from toolbus.results import Blob, Progress, ToolResult

Item = str | Blob | Progress | ToolResult

# Items that wait until the worker has room; the program is not read meanwhile.
_MOST_WAITING = 16


class Relay:
    """Takes in what a program answers; a program that answers faster than its caller reads waits."""

    __slots__ = ("_items", "_look", "_room")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._look = asyncio.Event()
        self._room = asyncio.Event()

    async def text(self, piece: str) -> None:
        """Pass on a piece of text."""
        await self._put(piece)

    async def blob(self, media_type: str, data: bytes) -> None:
        """Pass on a file."""
        await self._put(Blob(media_type, data))

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Pass on how far it is; numbers that JSON can't express are left out."""
        if math.isfinite(done):
            await self._put(Progress(done, total if total is not None and math.isfinite(total) else None, message))

    async def run(self, call: Callable[[Output], Coroutine[Any, Any, ToolResult]]) -> AsyncIterator[Item]:
        """Yield what a call streams, and its result last; the call is cancelled when nobody takes them any more.

        Raises:
            ToolError: the call failed.
        """
        working = asyncio.create_task(call(self))
        working.add_done_callback(lambda _: self._look.set())
        try:
            while True:
                while self._items:
                    item = self._items.popleft()
                    self._room.set()
                    yield item
                if working.done():
                    break
                self._look.clear()
                await self._look.wait()
            yield working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _put(self, item: Item) -> None:
        while len(self._items) >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        self._items.append(item)
        self._look.set()
