"""One run of a handler: from a delivery to frames, the last of which ends the stream."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import Delivery, WorkerBroker
from toolbus.confirmations import ConfirmationAnswer
from toolbus.envelope import NOT_BEGUN, Confirm, Frame, Request, encode, pieces
from toolbus.middleware.chain import Middleware
from toolbus.results import Blob, EnvelopeError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.settings import Settings
from toolbus.worker.definition.function import FunctionTool
from toolbus.worker.isolation.pool import HandlerCrashed, Isolation
from toolbus.worker.run.invocation import Caller, Invocation, enter
from toolbus.worker.run.middleware import Passing
from toolbus.worker.run.outcome import encodable, error_of, mismatch, result_of
from toolbus.worker.run.questions import Questions
from toolbus.worker.run.threads import ThreadIteration, Threads
from toolbus.worker.serving.handlers import Handler, Served

_UNKNOWN = {
    "began": "an earlier attempt began and its worker is gone; it may or may not have taken effect",
    "unsure": "the server was replaced or restored after it took the call and may have forgotten that it ran",
}
_UNCONFIRMED = "too few replicas of the server have confirmed the call in time, so it did not run"

# A handler may ask for its invocation in several threads at once.
_making = threading.Lock()


class Shelter(Protocol):
    """What runs share: the worker, as far as a run needs it.

    Attributes:
        most_gathered: bytes of text that gather for one frame, about.
    """

    broker: WorkerBroker
    settings: Settings
    threads: Threads
    isolation: Isolation
    most_gathered: int
    middleware: tuple[Middleware, ...]

    def ended(self, run: Run) -> None:
        """Free a run's slot."""

    def stopped(self, run: Run) -> None:
        """Hear that a run was told to stop before its end."""

    def extended(self, run: Run) -> None:
        """Hear that a run's deadline has changed."""

    def try_again(self, run: Run, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; False when there is to be none."""

    async def caller(self) -> Caller:
        """The bus for nested calls."""


class Run(msgspec.Struct, eq=False):
    """One start of a handler, from its delivery to its one terminal frame.

    Exactly one terminal frame is sent: by the handler's end, or by ``stop`` before it. What a
    stopped handler still produces is dropped.

    ``once`` work is marked on the server before its handler may begin, and entered when the handler is called: only from then on it may
    have had its effect.

    A Struct because it is made in C: with as many fields as it has, that saves the worker half a µs a call.
    """

    shelter: Shelter
    loop: asyncio.AbstractEventLoop
    delivery: Delivery
    served: Served
    handler: Handler
    task: asyncio.Task[None] | None = None
    slot: int = 0
    stopped: ErrorInfo | None = None
    ended: bool = False
    _seq: int = 0
    _sent: int = 0
    _text: bool = False
    _pieces: list[str] = []
    _gathered: int = 0
    _answered: bool = False
    _marked: bool = False
    _entered: bool = False
    _abandoned: bool = False
    _started: float = 0.0
    _iteration: ThreadIteration | None = None
    _thread: asyncio.Future[Any] | None = None
    _invocation: Invocation | None = None
    _questions: Questions | None = None

    # -- the run's own life -----------------------------------------------------------------------

    async def execute(self) -> None:
        """Run the handler to its end and answer; never raises for the handler's sake."""
        self._started = time.monotonic()
        request = self.delivery.request
        enter(self)
        try:
            if request.events:
                self._send(self._frame("start"))
            if self.handler.effect == "once" or request.effect == "once":
                await self._begin_once()
            if self.handler.coroutine and not (self._marked or self.shelter.middleware or telemetry.active()):
                # The most frequent kind, without a coroutine in between.
                self._answer(result_of(await self.handler.start(request)))
            else:
                self._answer(await self._handle_traced(self._handle_within if self.shelter.middleware else self._handle))
        except asyncio.CancelledError:
            # A stopped run has been answered. Otherwise the worker is going down with its task group,
            # unless the handler let a cancellation of its own out.
            if not self._answered:
                if self.task is None or self.task.cancelling():
                    raise
                self._fail(ToolError("the handler was cancelled from within", code="CancelledError"))
        except BaseException as error:
            # Whatever a handler raises is contained and becomes its answer: raised from here, SystemExit and
            # KeyboardInterrupt would end the event loop. A run that is closed from outside hears GeneratorExit too.
            if isinstance(error, GeneratorExit) and not self._is_running():
                raise
            self._contain(error)
        finally:
            try:
                if self._thread is not None:
                    await self._join_thread()
            finally:
                self._leave()

    def _is_running(self) -> bool:
        """Whether the event loop is at a step of this run's task."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:
            return False

    def expire(self) -> None:
        """End the run because its time is up."""
        message = f"the tool did not finish within {self.delivery.request.timeout:g} s"
        if self._entered:
            self.stop(ErrorInfo("outcome_unknown", "deadline_exceeded", f"{message}; it may or may not have taken effect"))
        else:
            self.stop(ErrorInfo("deadline_exceeded", message=message))

    def cancel(self) -> None:
        """End the run because nobody waits for it. Whoever still hears of it learns whether it can have taken effect."""
        if self._entered:
            message = "cancelled by the caller while the tool ran; it may or may not have taken effect"
            self.stop(ErrorInfo("outcome_unknown", "cancelled", message))
        elif self._once:
            self.stop(ErrorInfo("cancelled", NOT_BEGUN, "cancelled by the caller before the tool began"))
        else:
            self.stop(ErrorInfo("cancelled", message="cancelled by the caller"))

    def _leave(self) -> None:
        """Leave the worker, once. As a callback of the task's it took a further turn of the loop, and 4 % of a worker's time."""
        if not self.ended:
            self.ended = True
            self.shelter.ended(self)
            # The task's context and the invocation refer to this run: rings that only the collector finds, for 12 % of a worker's time.
            self.task = self._invocation = self._questions = None

    def stop(self, error: ErrorInfo | None) -> None:
        """End the run now: answer with ``error``, or not at all when the delivery is lost (None); cancel the handler."""
        if not self._answered:
            self._answered = True
            if error is not None:
                self._finish(self._frame("end", error))
        self._pieces.clear()
        self._stop_handler(error or ErrorInfo("cancelled", message="the call moved to another worker"))
        if self._iteration is not None:
            self._iteration.stop()
        if self.task is not None:
            self.task.cancel()
            self.shelter.stopped(self)
            self._leave_unbegun()

    def interrupt(self) -> bool:
        """End the run unanswered because its worker leaves; False when it was answered, since it must not run again."""
        if self._entered and not self._answered:
            message = "the worker was stopped while the tool ran; it may or may not have taken effect"
            self.stop(ErrorInfo("outcome_unknown", "worker_stopped", message))
        elif self._marked and not self._answered:
            # Whoever took it over would find the mark, and could not know that it is safe to run.
            self.stop(ErrorInfo("unavailable", "worker_stopped", "the worker was stopped before the tool began", retryable=True))
        answered = self._answered
        self.stop(None)
        return not answered

    @property
    def stuck(self) -> bool:
        """Whether the handler still runs although it was told to stop."""
        return self._answered and self.task is not None and not self.task.done()

    def abandon(self) -> asyncio.Task[None]:
        """Cancel the run without waiting for a thread of it; returns its task."""
        self._abandoned = True
        self._stop_handler(ErrorInfo("cancelled", message="the worker is going away"))
        task = self.task
        if task is None:
            raise RuntimeError("the run has not begun")
        task.cancel()
        self._leave_unbegun()
        return task

    def _leave_unbegun(self) -> None:
        """Leave, when the task was cancelled before its first step: it will never enter ``execute``."""
        if not self._started:
            self._leave()

    def _stop_handler(self, reason: ErrorInfo) -> None:
        self.stopped = reason
        if self._invocation is not None:
            self._invocation.cancel_nested()

    # -- Host, for the invocation -----------------------------------------------------------------

    @property
    def invocation(self) -> Invocation:
        """The handler's view of this run, made when it is first asked for: most handlers never do."""
        if self._invocation is None:
            with _making:
                if self._invocation is None:
                    delivery = self.delivery
                    self._invocation = Invocation(self, self.loop, delivery.request, attempt=delivery.attempt, deadline=delivery.deadline)
        return self._invocation

    @property
    def session_is_new(self) -> bool:
        """Whether this call opened its session at this worker."""
        sessions = self.served.sessions
        return sessions is not None and sessions.opened_by(self.delivery.request)

    def emit(self, item: Progress) -> None:
        """Send progress to the caller."""
        if not self._answered:
            frame = self._frame("progress")
            frame.progress = item
            self._send(frame)

    async def caller(self) -> Caller:
        """The bus for nested calls."""
        return await self.shelter.caller()

    async def confirm(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask a person; the call's time stands still meanwhile."""
        if self._questions is None:
            settings = self.shelter.settings
            self._questions = Questions(self, self.shelter.broker, settings.max_timeout, settings.max_request)
        return await self._questions.ask(question, data, timeout)

    # -- Asker, for the questions -----------------------------------------------------------------

    @property
    def owner(self) -> str:
        """Who published the tool."""
        return self.served.publication.owner

    def tell(self, confirm: Confirm) -> None:
        """Tell the caller that its call waits for a person, or does so no longer."""
        if not self._answered:
            frame = self._frame("confirm")
            frame.confirm = confirm
            self._send(frame)

    def extend(self, deadline: float) -> None:
        """Take in a later deadline."""
        self.delivery.deadline = deadline
        if self._invocation is not None:
            self._invocation.deadline = deadline
        self.shelter.extended(self)

    # -- handling ---------------------------------------------------------------------------------

    async def _begin_once(self) -> None:
        # From here on the mark may be set.
        self._marked = True
        state = await self.shelter.broker.begin(self.delivery)
        if state == "lost":
            self._answered = True
            raise asyncio.CancelledError
        if state == "unconfirmed":
            raise ToolError(_UNCONFIRMED, type="unavailable", code="not_replicated", retryable=True)
        if state != "started":
            raise ToolError(_UNKNOWN[state], type="outcome_unknown")

    @property
    def _once(self) -> bool:
        return self.handler.effect == "once" or self.delivery.request.effect == "once"

    def _enter(self, request: Request) -> None:
        """Take note that ``once`` work begins; arguments that do not fit are refused before it does."""
        if self.handler.check is not None:
            self.handler.check(request.arguments)
        self._entered = True

    async def _handle_traced(self, handle: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        if not telemetry.active():
            return await handle()
        request = self.delivery.request
        with telemetry.handler_span(
            request.traceparent,
            tool=request.tool,
            service=request.service,
            id=request.id,
            attempt=self.delivery.attempt,
            worker=self.shelter.broker.instance,
        ) as span:
            result = await handle()
            if span is not None and result.error is not None:
                span.fail(result.error)
            return result

    async def _handle_within(self) -> ToolResult:
        """Run the handler within the worker's middleware."""
        passing = Passing(self.delivery, self.handler, self.served.publication.digest, self.shelter.broker.tallies)
        return await passing.run(self.shelter.middleware, self._handle, self._error_info, self._give_up_handler)

    def _give_up_handler(self) -> None:
        if self.stopped is None:
            self._stop_handler(ErrorInfo("cancelled", message="the middleware around the handler gave it up"))
        if self._iteration is not None:
            self._iteration.stop()

    async def _handle(self, passing: Passing | None = None) -> ToolResult:
        start, request = self.handler.start, self.delivery.request if passing is None else passing.request
        if self._marked and self.handler.isolated is None:
            self._enter(request)
        if self.handler.coroutine:
            return result_of(await start(request))
        if self.handler.isolated is not None:
            value = self._start_isolated(self.handler.isolated, request)
        elif self.handler.threaded:
            self._thread = self.shelter.threads.call(lambda: start(request))
            value = await asyncio.shield(self._thread)
        else:
            value = start(request)
        if inspect.isawaitable(value):
            value = await value
        if hasattr(value, "__aiter__"):
            return await self._consume(value if passing is None else passing.watch(value))
        if isinstance(value, Iterator):
            self._iteration = self.shelter.threads.iterate(value)
            self._thread = self._iteration.thread
            return await self._consume(self._iteration if passing is None else passing.watch(self._iteration))
        return result_of(value)

    def _start_isolated(self, made: FunctionTool, request: Request) -> AsyncIterator[Any]:
        if self.handler.check is not None:
            # What does not fit takes no process.
            self.handler.check(request.arguments)
        delivery = self.delivery
        enter = functools.partial(self._enter, request) if self._marked else None
        return self.shelter.isolation.run(made, request, attempt=delivery.attempt, deadline=delivery.deadline, enter=enter)

    async def _consume(self, items: Any) -> ToolResult:
        result: ToolResult | None = None
        broker = self.shelter.broker
        iterator: AsyncIterator[Any] = aiter(items)
        try:
            async for item in iterator:
                if self._answered:
                    # The generator swallowed its cancellation: it is closed, or it would hold its slot for good.
                    raise asyncio.CancelledError
                if result is not None:
                    raise ToolError("the handler yielded more after its ToolResult", code="bad_stream")
                if type(item) is str:
                    self._send_text(item)
                elif isinstance(item, ToolResult):
                    result = item
                else:
                    self._send_item(item)
                # What gathers is bounded, so only what left can have filled the way to the server.
                if not self._pieces and broker.congested:
                    await broker.room()
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
        return result if result is not None else ToolResult(output=None if self._text else "")

    async def _join_thread(self) -> None:
        # A thread can't be stopped: it keeps its slot until it ends.
        while self._thread is not None and not self._thread.done():
            try:
                await asyncio.wait([self._thread])
            except asyncio.CancelledError:
                if self._abandoned or not self._answered:
                    raise
        if self._thread is not None and not self._thread.cancelled():
            self._thread.exception()

    # -- answering --------------------------------------------------------------------------------

    def _frame(self, kind: Any, error: ErrorInfo | None = None) -> Frame:
        if self._pieces:
            self._pack()
        delivery, seq = self.delivery, self._seq
        self._seq = seq + 1
        frame = Frame(delivery.request.id, delivery.run, delivery.attempt, seq, kind, None, kind == "end", error)
        if delivery.epoch:
            frame.epoch = delivery.epoch
        if seq == 0:
            frame.worker = self.shelter.broker.instance
            frame.queued_ms = int(delivery.queued_ms * 10) / 10
        return frame

    def _send(self, frame: Frame) -> None:
        self.shelter.broker.send(self.delivery, encode(frame))

    def _send_pieces(self, kind: Any, text: str) -> None:
        for piece in pieces(text, self.shelter.settings.max_frame):
            self._count(len(piece))
            frame = self._frame(kind)
            frame.response = piece
            self._send(frame)

    def _send_text(self, text: str) -> None:
        if not text:
            return
        self._text = True
        shelter = self.shelter
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            # Lone surrogates are mended on the way through the other one.
            size = shelter.most_gathered + 1
        if size > shelter.most_gathered:
            self._send_pieces("text", text)
            return
        self._sent += size
        if self._sent > shelter.settings.max_output:
            self._count(0)
        if not self._pieces:
            shelter.broker.before_sending(self._pack)
        self._pieces.append(text)
        self._gathered += size
        if self._gathered > shelter.most_gathered:
            self._pack()

    def _pack(self) -> None:
        """Send the text that gathered while earlier frames were on their way: several pieces in a frame cost hardly more than one."""
        pieces, self._pieces, self._gathered = self._pieces, [], 0
        if pieces:
            frame = self._frame("text")
            if len(pieces) == 1:
                frame.response = pieces[0]
            else:
                frame.texts = pieces
            self._send(frame)

    def _count(self, size: int) -> None:
        """Count output; raises ToolError when it is too much."""
        self._sent += size
        limit = self.shelter.settings.max_output
        if self._sent > limit:
            raise ToolError(f"the output is over the limit of {limit} bytes", code="output_limit")

    def _send_item(self, item: object) -> None:
        if isinstance(item, Progress):
            self.emit(item)
        elif isinstance(item, Blob):
            self._send_blob(item)
        elif isinstance(item, str):
            self._send_text(str(item))
        else:
            self._send_text(encode(item).decode())

    def _send_blob(self, blob: Blob) -> None:
        # Base64 makes four bytes of three.
        step = max(1, self.shelter.settings.max_frame * 3 // 4)
        for start in range(0, max(1, len(blob.data)), step):
            self._count(min(step, len(blob.data) - start))
            frame = self._frame("blob")
            frame.blob = Blob(blob.media_type, blob.data[start : start + step])
            frame.more = start + step < len(blob.data)
            self._send(frame)

    def _answer(self, result: ToolResult) -> None:
        if self._answered:
            return
        error = result.error
        if error is None and not result.success:
            error = ErrorInfo("tool_error", message="the tool reported a failure without a reason")
        if error is not None and self._given_up(error, retryable=error.retryable):
            return
        for blob in result.content:
            self._send_blob(blob)
        output, data = result.output, result.data
        limit = self.shelter.settings.max_frame
        if output is not None and len(output) * 4 > limit and len(output.encode("utf-8", "replace")) > limit:
            self._send_pieces("output" if self._text else "text", output)
            output = None
        if data is not None:
            encoded = encode(data)
            if len(encoded) > limit:
                self._send_pieces("data", encoded.decode())
                data = None
        frame = self._frame("end", error)
        frame.response = output
        frame.data = data
        payload = encode(frame)
        self._answered = True
        self.shelter.broker.finish(self.delivery, payload, frees=error is not None and not self._entered)
        self._log_end(error)

    def _contain(self, error: BaseException) -> None:
        try:
            self._fail(error)
        except BaseException:  # noqa: BLE001 - the run must leave the worker all the same
            telemetry.log.exception("run.bug", id=self.delivery.request.id)
            if not self._answered:
                self._answered = True
                self._finish(self._frame("end", ErrorInfo("tool_error", type(error).__name__, "what the handler raised can't be told")))

    def _fail(self, error: BaseException) -> None:
        if self._answered:
            return
        info = self._error_info(error)
        crashed = info.type == "tool_error" and not isinstance(error, ToolError)
        if self._given_up(info, retryable=error.error.retryable if isinstance(error, ToolError) else crashed):
            return
        self._answered = True
        self._finish(self._frame("end", info))
        self._log_end(info, error if crashed else None)

    def _given_up(self, error: ErrorInfo, *, retryable: bool) -> bool:
        """Whether a failure is not simply answered: the request is tried again, or set aside as a dead letter."""
        policy = self.handler.retry if retryable and not self._marked else None
        if policy is not None and self.shelter.try_again(self, error):
            self._answered = True
            self._log_end(error)
            return True
        if policy is None and self.delivery.replies:
            return False
        # Nobody hears of a failure that has no caller, and a service that retries wants to know what it could not do.
        self._answered = True
        reason = "retries_exhausted" if policy is not None else "failed"
        self.shelter.broker.bury(self.delivery, reason, str(error), encode(self._frame("end", error)))
        self._log_end(error)
        return True

    def _finish(self, frame: Frame) -> None:
        try:
            payload = encode(frame)
        except EnvelopeError:
            frame.error = encodable(frame.error or ErrorInfo("tool_error"))
            payload = encode(frame)
        self.shelter.broker.finish(self.delivery, payload, frees=not self._entered)

    def _error_info(self, error: BaseException) -> ErrorInfo:
        if isinstance(error, HandlerCrashed):
            return error.info
        return mismatch(self.delivery.request, self.served.publication, error_of(error))

    def _log_end(self, error: ErrorInfo | None, exception: BaseException | None = None) -> None:
        metering = telemetry.metering()
        if error is None and not metering and not telemetry.logs(logging.INFO):
            return
        request = self.delivery.request
        elapsed = time.monotonic() - self._started
        if metering:
            telemetry.record_run(request.service, elapsed, self.delivery.queued_ms / 1000, self._seq, error)
        fields = {
            "tool": request.tool or request.service,
            "user": request.user,
            "id": request.id,
            "attempt": self.delivery.attempt,
            "ms": round(elapsed * 1000, 1),
        }
        if error is None:
            telemetry.log.info("call.finished", **fields)
        elif exception is None:
            telemetry.log.warning("call.failed", error=error.type, code=error.code, **fields)
        else:
            telemetry.log.error("call.crashed", error=error.code, exc_info=exception, **fields)
