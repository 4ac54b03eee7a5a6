"""Run plain functions and generators in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolbus.results import CallCancelled

_MOST_AHEAD = 256


class Threads:
    """A pool with a thread per slot, so that a plain handler never waits for another's thread."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=size, thread_name_prefix="toolbus-handler")

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread, under a copy of this task's context."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._pool, context.run, _called, function)

    def iterate(self, iterator: Iterator[Any]) -> ThreadIteration:
        """Iterate in a thread; the items arrive here."""
        return ThreadIteration(self, iterator)

    def close(self) -> None:
        """Take no more work. Threads that still run are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _called(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except StopIteration as error:
        # A future takes no StopIteration, and would stay without a result.
        raise RuntimeError("the handler raised StopIteration") from error


class ThreadIteration:
    """An iterator that runs ahead in a thread, at most 256 items, without a thread switch per item."""

    def __init__(self, threads: Threads, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._room = threading.Event()
        self._room.set()
        self._told = False
        self._stopped = False
        self._ended = False
        self.thread: asyncio.Future[Any] = threads.call(self._pump)
        self.thread.add_done_callback(lambda _: self._end())

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
                    await self.thread
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
                    self._loop.call_soon_threadsafe(self._arrived.set)
                if len(self._items) >= _MOST_AHEAD:
                    self._room.clear()
                    if len(self._items) >= _MOST_AHEAD and not self._stopped:
                        self._room.wait()
        finally:
            if inspect.isgenerator(self._iterator):
                self._iterator.close()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()
