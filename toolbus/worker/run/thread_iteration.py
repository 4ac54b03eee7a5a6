"""Iterate a plain generator in a thread, ahead of who reads its items."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from toolbus.results import CallCancelled
from toolbus.worker.run.threads import ThreadCall, Threads
from toolbus.worker.serving.pace import Pace

_MOST_AHEAD = 256


class ThreadIteration:
    """An iterator that runs ahead in a thread, at most 256 items, without a thread switch per item."""

    def __init__(self, threads: Threads, iterator: Iterator[Any], pace: Pace) -> None:
        self._iterator = iterator
        self._threads = threads
        self._items: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._room = threading.Event()
        self._room.set()
        self._told = False
        self._stopped = False
        self._ended = False
        self.thread: ThreadCall = threads.call(self._pump, pace)

    def stop(self) -> None:
        """Make the thread stop at its next item."""
        self._stopped = True
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                self._told = False
                while self._items:
                    item = self._items.popleft()
                    if len(self._items) < _MOST_AHEAD // 2:
                        self._room.set()
                    yield item
                if self._ended and not self._items:
                    await self.thread.wait()
                    return
        finally:
            self.stop()

    def _pump(self) -> None:
        try:
            for item in self._iterator:
                if self._stopped:
                    raise CallCancelled("nobody waits for this call any more")
                self._items.append(item)
                if not self._told:
                    self._told = True
                    self._threads.tell(self._arrived.set)
                if len(self._items) >= _MOST_AHEAD:
                    self._room.clear()
                    if len(self._items) >= _MOST_AHEAD and not self._stopped:
                        self._room.wait()
        finally:
            if inspect.isgenerator(self._iterator):
                self._iterator.close()
            self._threads.tell(self._end)

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()
