"""Run plain functions in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from toolbus.bus.worker.serving.handlers import Pace

# Seconds of a function that runs on the thread of others; each longer one gets a thread of its own at once.
_QUICK = 0.0002
# Seconds after which functions that wait behind one that takes longer than expected get a thread.
_PATIENCE = 0.002
_NO_CONTEXT = contextvars.Context()


def _nothing() -> None:
    pass


class ThreadCall:
    """One call of a function in a thread. It goes on when who waits for it is cancelled."""

    __slots__ = ("_context", "_ended", "_error", "_function", "_loop", "_pace", "_result", "_waiters")

    def __init__(self, function: Callable[[], Any], pace: Pace, loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._pace = pace
        self._loop = loop
        self._ended = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def quick(self) -> bool:
        """True if it is expected to end at once."""
        return self._pace.seconds <= _QUICK

    def done(self) -> bool:
        """Return whether the function has ended."""
        return self._ended

    async def wait(self) -> Any:
        """Wait for what the function returns.

        Raises:
            BaseException: whatever the function raises.
        """
        await self.join()
        if self._error is None:
            return self._result
        error, self._error = self._error, None
        try:
            raise error
        finally:
            # Its traceback refers to this frame.
            del error

    async def join(self) -> None:
        """Wait until the function has ended."""
        if not self._ended:
            # One for each who waits: cancelling one of them cancels no other.
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def run(self) -> None:
        """Call the function; in the thread."""
        function, context = self._function, self._context
        # What they refer to is not needed any longer.
        self._function, self._context = _nothing, _NO_CONTEXT
        began = time.perf_counter()
        try:
            self._result = context.run(function)
        except StopIteration as error:
            # A coroutine may not raise it.
            self._error = RuntimeError("the handler raised StopIteration")
            self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            self._error = error
        self._pace.learn(time.perf_counter() - began)

    def end(self) -> None:
        """Wake who waits; in the event loop."""
        self._ended = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Threads:
    """A pool with a thread per slot: a function that blocks never keeps another one from its thread.

    Waking a thread, and the event loop from it, costs ten times as much as a short function. So functions that have been quick lately
    share one thread, and all that ends before the loop gets to run wakes it once.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[ThreadCall] = deque()
        # Each wakes one parked thread; False ends it.
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._parked = 0
        # Threads that run what is not expected to end at once.
        self._occupied = 0
        self._begun = 0
        self._watching = False
        self._told: deque[Callable[[], object]] = deque()
        self._telling = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def call(self, function: Callable[[], Any], pace: Pace) -> ThreadCall:
        """Run a function in a thread, under a copy of this task's context."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        call = ThreadCall(function, pace, self._loop)
        self._waiting.append(call)
        with self._lock:
            if call.quick and self._threads - self._parked > self._occupied:
                if not self._watching:
                    self._watch(self._loop)
            elif not self._wake() and not self._threads:
                self._waiting.remove(call)
                raise RuntimeError("the system gives this process no more threads")
        return call

    def tell(self, callback: Callable[[], object]) -> None:
        """Have the event loop call something; from a thread."""
        self._told.append(callback)
        if not self._telling and self._loop is not None:
            self._telling = True
            # The loop may be closed, with nobody left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._listen)

    def close(self) -> None:
        """Take no more work. Threads that still run are not waited for."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            for _ in range(self._threads):
                self._tickets.put(False)

    def _listen(self) -> None:
        # First, so that what comes from here on is told again.
        self._telling = False
        while self._told:
            self._told.popleft()()

    def _wake(self) -> bool:
        """Have one more thread work, and return whether there is one that did not; with the lock held."""
        if self._parked:
            self._parked -= 1
            self._tickets.put(True)
        elif self._threads < self._size:
            try:
                threading.Thread(target=self._work, name=f"toolbus-handler_{self._threads}", daemon=True).start()
            except RuntimeError:
                # The threads that there are run everything, one thing after another.
                return False
            self._threads += 1
        else:
            return False
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watching = True
        loop.call_later(_PATIENCE, self._look, loop, self._begun)

    def _look(self, loop: asyncio.AbstractEventLoop, begun: int) -> None:
        """Wake a thread when those that work have begun nothing since the last look."""
        with self._lock:
            self._watching = False
            if self._waiting and not self._closed:
                if self._begun == begun:
                    self._wake()
                self._watch(loop)

    def _work(self) -> None:
        while True:
            self._work_off()
            with self._lock:
                if self._closed:
                    return
                if self._waiting:
                    continue
                self._parked += 1
            if not self._tickets.get():
                return

    def _work_off(self) -> None:
        while True:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            self._begun += 1
            if call.quick:
                call.run()
            else:
                with self._lock:
                    self._occupied += 1
                call.run()
                with self._lock:
                    self._occupied -= 1
            self.tell(call.end)
            del call
