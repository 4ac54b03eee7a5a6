"""Call a handler of any kind: a coroutine, a plain function or generator in a thread, a child process; within middleware."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from toolbus import telemetry
from toolbus.broker.protocols import Delivery
from toolbus.envelope import Request
from toolbus.results import CallCancelled, ErrorInfo, ToolResult
from toolbus.worker.definition.function import FunctionTool
from toolbus.worker.run import reasons
from toolbus.worker.run.context import RunContext
from toolbus.worker.run.middleware import MiddlewareCall
from toolbus.worker.run.outcome import result_of
from toolbus.worker.run.states import RunState
from toolbus.worker.run.stream import Stream
from toolbus.worker.run.threads import ThreadCall, Threads
from toolbus.worker.serving.handlers import Handler, Served
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
