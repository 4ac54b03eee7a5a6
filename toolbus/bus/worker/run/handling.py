"""Call a handler of any kind: a coroutine, a plain function or generator in a thread, a child process; within middleware."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.middleware.chain import Middleware, ToolCall, chained
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import Blob, CallCancelled, ErrorInfo, ToolError, ToolResult
from toolbus.bus.worker.definition.function import FunctionTool
from toolbus.bus.worker.run import reasons
from toolbus.bus.worker.run.attachments import pieces_of
from toolbus.bus.worker.run.outcome import result_of
from toolbus.bus.worker.run.reasons import RunContext, RunState
from toolbus.bus.worker.run.stream import Stream
from toolbus.bus.worker.run.threads import ThreadCall, Threads
from toolbus.bus.worker.serving.handlers import Handler, Pace, Served

if TYPE_CHECKING:
    from toolbus.bus.broker.limits import Tallies
    from toolbus.bus.broker.take.requests import Delivery


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
        told: Callable[[BaseException], ErrorInfo],
        given_up: Callable[[], None],
    ) -> ToolResult:
        """Run the handler within the middleware; return what is still to be sent.

        Args:
            middleware: the outermost first.
            handle: runs the handler.
            told: what an exception of the handler is as a value.
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
                info = told(error)
                self._raised = error, info
                return ToolResult(success=False, output=self._joined(), error=info, content=tuple(self._blobs))
            output = self._joined() if result.output is None and self._texts else result.output
            return msgspec.structs.replace(result, output=output, content=(*self._blobs, *result.content))

        request = self.request
        first = ToolCall(
            id=request.id,
            tool=request.tool,
            service=request.service,
            user=request.user,
            session=request.session,
            arguments=request.arguments,
            config=request.config,
            metadata=request.metadata,
            idempotency_key=request.idempotency_key,
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


class HandledRun(Protocol):
    """The part of a run that the handling of its call uses."""

    context: RunContext
    delivery: Delivery
    served: Served
    handler: Handler
    stopped: ErrorInfo | None
    abandoned: bool

    @property
    def state(self) -> RunState:
        """The state of the run."""

    @property
    def once(self) -> bool:
        """True if it must not happen twice."""

    async def begin_once(self, request: Request) -> None:
        """Mark that the handler of ``once`` work begins."""

    def open_stream(self) -> Stream:
        """Return what sends the items that the handler yields."""

    def stop_handler(self, reason: ErrorInfo) -> None:
        """Tell the handler to stop."""

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""


class Handling:
    """One call of a handler, beside its thread if it has one."""

    __slots__ = ("_iteration", "_run", "_thread")

    def __init__(self, run: HandledRun) -> None:
        self._run = run
        self._iteration: ThreadIteration | None = None
        self._thread: ThreadCall | None = None

    async def handle(self) -> ToolResult:
        """Run the handler to its end, within the worker's middleware and a span where there are any.

        Raises:
            Exception: whatever the handler raises.
        """
        run = self._run
        if not telemetry.active():
            return await self._handle()
        request = run.delivery.request
        with telemetry.handler_span(
            request.traceparent,
            tool=request.tool,
            service=request.service,
            id=request.id,
            attempt=run.delivery.attempt,
            worker=run.context.broker.instance,
        ) as span:
            try:
                result = await self._handle()
            finally:
                if span is not None and run.stopped is not None and (run.abandoned or run.state >= RunState.ANSWERED):
                    # Whatever the handler makes of it, the run has ended for this reason.
                    span.fail(run.stopped)
            if span is not None and result.error is not None:
                span.fail(result.error)
            return result

    def stop(self) -> None:
        """Make a generator in a thread end at its next item."""
        if self._iteration is not None:
            self._iteration.stop()

    async def join(self) -> None:
        """Wait until the handler's thread has ended: it can't be stopped, and keeps the run's slot until then.

        Raises:
            CancelledError: the run was abandoned, or goes down with its worker.
        """
        run, thread = self._run, self._thread
        while thread is not None and not thread.done():
            try:
                await thread.join()
            except asyncio.CancelledError:
                if run.abandoned or run.state < RunState.ANSWERED:
                    raise

    async def _handle(self) -> ToolResult:
        run = self._run
        if not run.context.middleware:
            return await self._call(None)
        call = MiddlewareCall(run.delivery, run.handler, run.served.publication.digest, run.context.broker.tallies)
        return await call.run(run.context.middleware, self._call, run.error_info, self._give_up)

    def _give_up(self) -> None:
        if self._run.stopped is None:
            self._run.stop_handler(reasons.GIVEN_UP)
        self.stop()

    async def _call(self, call: MiddlewareCall | None) -> ToolResult:
        run = self._run
        if run.state >= RunState.ANSWERED:
            # Middleware went on although the run was stopped, and the caller may know that the handler was not called.
            raise CallCancelled(str(run.stopped or reasons.MOVED))
        handler, request = run.handler, run.delivery.request if call is None else call.request
        start = handler.start
        if run.once and handler.isolated is None:
            await run.begin_once(request)
        if handler.coroutine:
            return result_of(await start(request))
        if handler.isolated is not None:
            value = self._start_isolated(handler.isolated, request)
        elif handler.threaded:
            self._thread = run.context.threads.call(lambda: start(request), handler.pace)
            value = await self._thread.wait()
        else:
            value = start(request)
        if inspect.isawaitable(value):
            value = await value
        if hasattr(value, "__aiter__"):
            return await run.open_stream().consume(value if call is None else call.watch(value))
        if isinstance(value, Iterator):
            self._iteration = ThreadIteration(run.context.threads, value, handler.pace)
            self._thread = self._iteration.thread
            return await run.open_stream().consume(self._iteration if call is None else call.watch(self._iteration))
        return result_of(value)

    def _start_isolated(self, made: FunctionTool, request: Request) -> AsyncIterator[Any]:
        run = self._run
        if run.handler.check is not None:
            # Arguments that do not fit take no process.
            run.handler.check(request.arguments)
        delivery = run.delivery
        begin = functools.partial(run.begin_once, request) if run.once else None
        return run.context.isolation.run(made, request, attempt=delivery.attempt, deadline=delivery.deadline, begin=begin)
