"""Ways to call a handler: in a thread, as an iterator in a thread, within middleware."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus.middleware import Middleware, ToolCall, chained
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import Blob, CallCancelled, ErrorInfo, ToolError, ToolResult
from toolbus.bus.worker.handlers import Handler, Pace
from toolbus.bus.worker.outcome import pieces_of, result_of

if TYPE_CHECKING:
    from toolbus.bus.broker.held.limits import Tallies
    from toolbus.bus.broker.take.requests import Delivery

# Seconds of a function that runs on the thread of others; each longer one gets a thread of its own at once.
_QUICK = 0.0002
# Seconds after which functions that wait behind one that takes longer than expected get a thread.
_PATIENCE = 0.002
_NO_CONTEXT = contextvars.Context()


def _nothing() -> None:
    pass


class ThreadCall(msgspec.Struct, eq=False):
    """One call of a function in a thread. It goes on when who waits for it is cancelled."""

    _function: Callable[[], Any]
    _pace: Pace
    _loop: asyncio.AbstractEventLoop
    _context: contextvars.Context = msgspec.field(default_factory=contextvars.copy_context)
    _ended: bool = False
    _result: Any = None
    _error: BaseException | None = None
    _waiters: list[asyncio.Future[None]] = []

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
        self._callbacks: deque[Callable[[], object]] = deque()
        self._scheduled = False
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

    def call_in_loop(self, callback: Callable[[], object]) -> None:
        """Have the event loop call something; from a thread."""
        self._callbacks.append(callback)
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            # The loop may be closed, with nobody left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._run_callbacks)

    def close(self) -> None:
        """Take no more work. Threads that still run are not waited for."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            for _ in range(self._threads):
                self._tickets.put(False)

    def _run_callbacks(self) -> None:
        # First, so that what comes from here on is told again.
        self._scheduled = False
        while self._callbacks:
            self._callbacks.popleft()()

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
            self.call_in_loop(call.end)
            del call


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
        self._announced = False
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
                self._announced = False
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
                if not self._announced:
                    self._announced = True
                    self._threads.call_in_loop(self._arrived.set)
                if len(self._items) >= _MOST_AHEAD:
                    self._room.clear()
                    if len(self._items) >= _MOST_AHEAD and not self._stopped:
                        self._room.wait()
        finally:
            if inspect.isgenerator(self._iterator):
                self._iterator.close()
            self._threads.call_in_loop(self._end)

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()


# Middleware sees these as they are in the request.
_OF_REQUEST = ("id", "tool", "service", "user", "session", "arguments", "config", "metadata", "idempotency_key")


class MiddlewareCall:
    """Gives middleware the handler's whole answer as a result, then takes out again what the caller was sent already.

    What a handler yields goes to the caller as it comes; middleware sees it when the handler has ended.

    Attributes:
        request: what the handler is to run.
    """

    def __init__(self, delivery: Delivery, handler: Handler, digest: str, tallies: Tallies) -> None:
        self.request: Request = delivery.request
        self._attempt = delivery.attempt
        self._handler = handler
        self._digest = digest
        self._tallies = tallies
        self._texts: list[str] = []
        self._blobs: list[Blob] = []
        self._text = ""
        self._raised: tuple[Exception, ErrorInfo] | None = None

    async def run(
        self,
        middleware: tuple[Middleware, ...],
        handle: Callable[[MiddlewareCall], Awaitable[ToolResult]],
        error_info: Callable[[BaseException], ErrorInfo],
        given_up: Callable[[], None],
    ) -> ToolResult:
        """Run the handler within the middleware; return what is still to be sent.

        Args:
            middleware: the outermost first.
            handle: runs the handler.
            error_info: returns an exception of the handler as a value.
            given_up: called when middleware cancels the handler.

        Raises:
            Exception: what the handler raised, if middleware let it pass.
        """

        async def innermost(call: ToolCall) -> ToolResult:
            if self._texts or self._blobs:
                raise ToolError("next() can't run a handler again whose text is on its way", code="bad_middleware")
            if call is not first:
                self.request = msgspec.structs.replace(self.request, arguments=dict(call.arguments), config=dict(call.config))
            self._raised = None
            try:
                result = await handle(self)
            except asyncio.CancelledError:
                given_up()
                raise
            except Exception as error:  # noqa: BLE001 - raised again, unless middleware makes something else of it
                info = error_info(error)
                self._raised = error, info
                return ToolResult(success=False, output=self._joined(), error=info, content=tuple(self._blobs))
            output = self._joined() if result.output is None and self._texts else result.output
            return msgspec.structs.replace(result, output=output, content=(*self._blobs, *result.content))

        request = self.request
        first = ToolCall(
            **{name: getattr(request, name) for name in _OF_REQUEST},
            digest=self._digest,
            effect=self._handler.effect or request.effect,
            # What a session keeps in its worker is in no field of the request.
            cache=False if request.ordered or request.state else self._handler.cache,
            side="handler",
            attempt=self._attempt,
            tallies=self._tallies,
            delivered=self._delivered,
        )
        result = await chained(middleware, innermost)(first)
        if self._raised is not None and result.error is self._raised[1]:
            # As it would be without middleware: with its traceback, and tried again where the service says so.
            raise self._raised[0]
        return self._rest(result_of(result))

    async def watch(self, items: Any) -> AsyncIterator[Any]:
        """Pass on what a handler yields, and remember it."""
        iterator: AsyncIterator[Any] = aiter(items)
        try:
            async for item in iterator:
                if item is None:
                    # Passed on, since what iterates gives way at an item that sends nothing.
                    yield None
                    continue
                for piece in pieces_of(item, len(self._blobs)):
                    if isinstance(piece, Blob):
                        self._blobs.append(piece)
                    elif isinstance(piece, str):
                        self._texts.append(piece)
                    yield piece
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def _delivered(self) -> int:
        return sum(len(text.encode("utf-8", "replace")) for text in self._texts) + sum(len(blob.data) for blob in self._blobs)

    def _joined(self) -> str | None:
        self._text = "".join(self._texts)
        return self._text or None

    def _rest(self, result: ToolResult) -> ToolResult:
        output, content = result.output, result.content
        if self._texts and output == self._text:
            output = None
        if self._blobs and content[: len(self._blobs)] == tuple(self._blobs):
            content = content[len(self._blobs) :]
        return msgspec.structs.replace(result, output=output, content=content)
