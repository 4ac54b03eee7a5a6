"""One run of a handler: from a delivery to frames, the last of which ends the call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.middleware import Middleware
from toolbus.bus.support.display import shortened
from toolbus.bus.support.safe_text import is_a, type_name
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationAnswer
from toolbus.bus.values.encoding import exact_text, whole_text
from toolbus.bus.values.envelope import Confirm, Frame, Request, encode, encode_data, pieces
from toolbus.bus.values.results import Blob, BrokerError, CallCancelled, EnvelopeError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker import outcome
from toolbus.bus.worker.function import FunctionTool
from toolbus.bus.worker.handlers import Handler, Served
from toolbus.bus.worker.handling import MiddlewareCall, ThreadCall, ThreadIteration, Threads
from toolbus.bus.worker.invocation import Caller, Invocation, Questions, enter
from toolbus.bus.worker.isolation.pool import HandlerCrashed, Isolation
from toolbus.bus.worker.outcome import (
    End,
    checked,
    error_of,
    is_crash,
    is_retryable,
    other_revision,
    pieces_of,
    report_buried,
    report_end,
    result_of,
)
from toolbus.bus.worker.session_state import SessionState
from toolbus.bus.worker.statistics import Sampling
from toolbus.bus.worker.transitions import NEXT_OF_RUN, BadTransitionError, RunState

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

_CREATED, _RUNNING, _MARKED, _ENTERED = RunState.CREATED, RunState.RUNNING, RunState.MARKED, RunState.ENTERED
_ANSWERED, _ENDED = RunState.ANSWERED, RunState.ENDED
# Seconds within which a worker that goes down has abandoned its runs.
_GOING_DOWN = 0.05

# Characters of the text beside progress; what is cut is said.
_MOST_PROGRESS_TEXT = 8_000
# Bytes of data that it takes less time to encode once more, for the frame, than to wrap.
_MOST_ENCODED_TWICE = 400
_MOST_MEDIA_TYPE = 255
_SESSION_MOVED = ErrorInfo(
    "tool_error",
    "session_moved",
    "another worker has the session or this call, or the server has lost the call, so what it changed in the session may be lost",
)

# A handler may ask for its invocation in several threads at once.
_making = threading.Lock()


class RunContext(Protocol):
    """The slots of a worker, as their runs see them: what these share, and whom they tell of a change.

    Attributes:
        most_gathered: bytes of text that gather for one frame, about.
        clock: returns monotonic seconds.
        sampling: takes in which attempts have ended.
    """

    broker: WorkerBroker
    settings: Settings
    threads: Threads
    isolation: Isolation
    middleware: tuple[Middleware, ...]
    most_gathered: int
    clock: Callable[[], float]
    sampling: Sampling

    def caller(self) -> Awaitable[Caller]:
        """Return the bus for nested calls."""

    def ended(self, run: Run) -> None:
        """Free a run's slot."""

    def stopped(self, run: Run) -> None:
        """Take note that a run was told to stop before its end."""

    def extended(self, run: Run) -> None:
        """Take note that a run's deadline has changed."""

    def try_again(self, run: Run, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; return False when there is to be none."""


class Run(msgspec.Struct, eq=False):
    """One start of a handler, from its delivery to its one last frame.

    The last frame is sent when the handler ends, or by ``stop`` before that. What a stopped handler still produces is dropped.

    A Struct because it is made in C: with as many fields as it has, that saves the worker half a µs a call.

    Attributes:
        context: the slots of its worker.
        task: the task of ``execute``, until the run has ended.
        slot: of the deadline, for its removal; 0 while it has none.
        stopped: why the handler was told to stop, or None.
        state: how far the run has come.
        abandoned: whether its worker ends without waiting for it.
        restarted: whether it runs on a new state of its session, although it was meant for another one.
        began: the monotonic time at which it began to run; 0 before.
        session: the state of its session, when its service has sessions and the call names one.
    """

    context: RunContext
    loop: asyncio.AbstractEventLoop
    delivery: Delivery
    served: Served
    handler: Handler
    task: asyncio.Task[None] | None = None
    slot: int = 0
    stopped: ErrorInfo | None = None
    state: RunState = _CREATED
    abandoned: bool = False
    restarted: bool = False
    session: SessionState | None = None
    began: float = 0.0
    _seq: int = 0
    _stream: Stream | None = None
    _thread: ThreadCall | None = None
    _iteration: ThreadIteration | None = None
    _invocation: _RunInvocation | None = None
    _questions: Questions | None = None

    def _move(self, state: RunState) -> None:
        if state not in NEXT_OF_RUN[self.state]:
            raise BadTransitionError(self.state, state)
        self.state = state

    # -- the run's own life -----------------------------------------------------------------------

    async def execute(self) -> None:
        """Run the handler to its end and answer. Nothing that the handler raises is raised from here."""
        self._move(_RUNNING)
        self.began = self.context.clock()
        request = self.delivery.request
        enter(self.invocation)
        try:
            if request.events:
                self.send(self.frame("start"))
            span = self._traced() if telemetry.active() else None
            around = self.context.middleware or self.served.restores_sessions or (span is not None and (span.span or self.once))
            if self.handler.coroutine and not around:
                # The most frequent kind, without a coroutine in between.
                if self.once:
                    await self._begin_once(request)
                if span is None:
                    self._answer(result_of(await self.handler.start(request)))
                else:
                    with span:
                        result = result_of(await self.handler.start(request))
                    self._answer(result)
            else:
                self._answer(await self._handle_in_session(span))
        except asyncio.CancelledError as error:
            await self._contain_cancellation(error)
        except BaseException as error:
            # Whatever a handler raises is contained and becomes its answer: raised from here, SystemExit and
            # KeyboardInterrupt would end the event loop. A run that is closed from outside gets GeneratorExit too.
            if is_a(error, GeneratorExit) and asyncio.current_task(self.loop) is not self.task:
                raise
            self._contain(error)
        finally:
            try:
                if self._thread is not None:
                    await self._join_thread(self._thread)
            finally:
                self._leave()

    async def _contain_cancellation(self, error: asyncio.CancelledError) -> None:
        """Answer the call if its handler let a cancellation of its own out; raise it in a run whose worker goes down."""
        if self.state >= _ANSWERED:
            return
        if self.task is None or self.abandoned:
            raise error
        # The handler may have cancelled its own task. A worker that goes down abandons its runs now, which cancels once more.
        await asyncio.sleep(_GOING_DOWN if self.task.cancelling() else 0)
        self._fail(ToolError("the handler was cancelled from within", code="CancelledError"))

    def expire(self) -> None:
        """End the run because its time is up."""
        error = outcome.deadline_passed(self.state, self.delivery.request.timeout, self._waited)
        self.stop(outcome.not_run(error, self.delivery, once=self.once))

    def cancel(self, why: str = "cancelled") -> None:
        """End the run because its caller gave it up; ``why`` is the type of the error that the caller has."""
        error = outcome.given_up(self.state, why, self.delivery.request.timeout, self._waited, once=self.once)
        self.stop(outcome.not_run(error, self.delivery, once=self.once))

    def close(self) -> None:
        """End the run because its session was closed."""
        self.stop(outcome.not_run(outcome.session_closed(self.state), self.delivery, once=self.once))

    def interrupt(self) -> bool:
        """End the run because its worker leaves; return whether another worker may run the request, since it was not answered."""
        if self.state < _ANSWERED:
            reason = outcome.worker_stopped(self.state)
            self.stop(reason, unanswered="handed_back")
            return reason is None
        self.stop(None)
        return False

    def stop(self, error: ErrorInfo | None, unanswered: End = "lost") -> None:
        """End the run now: answer with ``error``, or not at all when another worker is to (None); cancel the handler."""
        unbegun = self.state is _CREATED
        if self.state < _ANSWERED:
            entered = self.state is _ENTERED
            self._move(_ANSWERED)
            if error is not None:
                # Its handler may have changed the state, and what it changes yet is in no snapshot.
                forgets = not unbegun and self._changed_session is not None
                frame = encode(self.frame("end", error))
                self.context.broker.steps.endings.finish(self.delivery, frame, frees=not entered, forgets=forgets)
            self._report(unanswered if error is None else "cancelled" if error.type == "cancelled" else "failed", error)
        if self._stream is not None:
            self._stream.gathered.clear()
        self._stop_handler(error or (outcome.MOVED if unanswered == "lost" else outcome.LEAVING))
        if self._iteration is not None:
            self._iteration.stop()
        if self.task is not None:
            self.task.cancel()
            self.context.stopped(self)
            if unbegun:
                # Cancelled before its first step, the task never enters ``execute``.
                self._leave()

    def abandon(self) -> asyncio.Task[None]:
        """Cancel the run without waiting for a thread of it; return its task.

        Raises:
            RuntimeError: the run has no task.
        """
        self.abandoned = True
        self._stop_handler(outcome.LEAVING)
        task = self.task
        if task is None:
            raise RuntimeError("the run has not begun")
        task.cancel()
        if self.state is _CREATED:
            self._leave()
        return task

    @property
    def _waited(self) -> float:
        # An earlier attempt may have run most of the time since the request was published.
        return self.delivery.queued_ms if self.delivery.attempt == 1 else 0.0

    @property
    def stuck(self) -> bool:
        """True if the handler still runs although it was told to stop."""
        return self.state is _ANSWERED and self.task is not None and not self.task.done()

    def _stop_handler(self, reason: ErrorInfo) -> None:
        """Tell the handler to stop: what its invocation says, and its nested calls."""
        self.stopped = reason
        if self._invocation is not None:
            self._invocation.cancel_nested()

    def _leave(self) -> None:
        """Free the slot, once. As a callback of the task's it took a further turn of the loop, and 4 % of a worker's time."""
        if self.state is not _ENDED:
            if self.state < _ANSWERED:
                # Its worker goes down: it has not handed the request back, and another one takes it over.
                self._report("handed_back")
            self.state = _ENDED
            self.context.ended(self)
            # These refer to this run: rings that only the garbage collector finds, for 12 % of a worker's time.
            self.task = self._invocation = self._questions = self._stream = self._thread = self._iteration = None

    # -- the handler ------------------------------------------------------------------------------

    async def _handle_in_session(self, span: telemetry.HandlerSpan | None) -> ToolResult:
        """Return the handler's result, after a snapshot of its session if the service wants that, also when the handler failed."""
        session = self._changed_session
        if session is None:
            return await self._handle(span)
        session.enter(self.delivery)
        result, done, changes = None, True, True
        try:
            result = await self._handle(span)
            done = not self._has_attempts() or result.error is None or not result.error.retryable
        except BaseException as error:
            done = not self._has_attempts() or not is_retryable(error, self.error_info(error))
            raise
        finally:
            keep = self.state < _ANSWERED and not self.abandoned
            changes = await session.leave(self.delivery, self.context.broker.steps.snapshots, keep=keep, done=done)
        return result if changes else ToolResult(success=False, error=_SESSION_MOVED)

    @property
    def _changed_session(self) -> SessionState | None:
        """The session of which the service keeps snapshots, if this call may change its state."""
        changes = self.served.restores_sessions and not (self.handler.beside and not self.delivery.request.ordered)
        return self.session if changes else None

    def _has_attempts(self) -> bool:
        """Return whether a retryable failure leads to another attempt, unless the deadline comes first."""
        policy = self.handler.retry if self.state is _RUNNING else None
        return policy is not None and policy.allows(self.delivery.tries, self.context.settings.max_deliveries)

    def _traced(self) -> telemetry.HandlerSpan | None:
        request = self.delivery.request
        return telemetry.handler_span(
            request.traceparent,
            tool=request.tool,
            service=request.service,
            id=request.id,
            attempt=self.delivery.attempt,
            worker=self.context.broker.instance,
        )

    async def _handle(self, span: telemetry.HandlerSpan | None) -> ToolResult:
        """Run the handler to its end, within the worker's middleware and a span where there are any."""
        if span is None:
            return await self._handle_in_middleware()
        with span:
            try:
                result = await self._handle_in_middleware()
            finally:
                if self.stopped is not None and (self.abandoned or self.state >= _ANSWERED):
                    # Whatever the handler makes of it, the run has ended for this reason.
                    span.fail(self.stopped)
            if result.error is not None:
                span.fail(result.error)
            return result

    def _handle_in_middleware(self) -> Awaitable[ToolResult]:
        middleware = self.context.middleware
        if not middleware:
            return self._call(None)
        call = MiddlewareCall(self.delivery, self.handler, self.served.publication.digest, self.context.broker.steps.tallies)
        return call.run(middleware, self._call, self.error_info, self._give_up)

    def _give_up(self) -> None:
        if self.stopped is None:
            self._stop_handler(outcome.GIVEN_UP)
        if self._iteration is not None:
            self._iteration.stop()

    async def _call(self, call: MiddlewareCall | None) -> ToolResult:
        """Call the handler, of whatever kind it is: a coroutine, a plain function or generator in a thread, a child process."""
        if self.state >= _ANSWERED:
            # Middleware went on although the run was stopped, and the caller may know that the handler was not called.
            raise CallCancelled(str(self.stopped or outcome.MOVED))
        handler, request = self.handler, self.delivery.request if call is None else call.request
        start, threads = handler.start, self.context.threads
        value: Any
        if self.once and handler.isolated is None:
            await self._begin_once(request)
        if handler.coroutine:
            return result_of(await start(request))
        if handler.isolated is not None:
            value = self._start_isolated(handler.isolated, request)
        elif handler.threaded:
            self._thread = threads.call(lambda: start(request), handler.pace)
            value = await self._thread.wait()
        else:
            value = start(request)
        if inspect.isawaitable(value):
            value = await value
        if isinstance(value, Iterator) and not hasattr(value, "__aiter__"):
            value = self._iteration = ThreadIteration(threads, value, handler.pace)
            self._thread = self._iteration.thread
        if hasattr(value, "__aiter__"):
            return await self.open_stream().consume(value if call is None else call.watch(value))
        return result_of(value)

    def _start_isolated(self, made: FunctionTool, request: Request) -> AsyncIterator[Any]:
        if self.handler.check is not None:
            # Arguments that do not fit take no process.
            self.handler.check(request.arguments)
        delivery = self.delivery
        begin = functools.partial(self._begin_once, request) if self.once else None
        return self.context.isolation.run(made, request, attempt=delivery.attempt, deadline=delivery.deadline, begin=begin)

    async def _join_thread(self, thread: ThreadCall) -> None:
        """Wait until the handler's thread has ended: it can't be stopped, and keeps the run's slot until then.

        Raises:
            CancelledError: the run was abandoned, or goes down with its worker.
        """
        while not thread.done():
            try:
                await thread.join()
            except asyncio.CancelledError:
                if self.abandoned or self.state < _ANSWERED:
                    raise

    # -- for the invocation -----------------------------------------------------------------------

    def invocation(self) -> Invocation:
        """Return the handler's view of this run, made when it is first asked for: most handlers never do."""
        if self._invocation is None:
            with _making:
                if self._invocation is None:
                    self._invocation = _RunInvocation(self)
        return self._invocation

    def emit(self, item: Progress) -> None:
        """Send progress to the caller."""
        if self.state < _ANSWERED:
            if len(item.message) > _MOST_PROGRESS_TEXT:
                item = Progress(item.done, item.total, shortened(exact_text(item.message), _MOST_PROGRESS_TEXT))
            frame = self.frame("progress")
            frame.progress = item
            self.send(frame)

    async def confirm(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask a person, for at most ``timeout`` seconds; the call's time stands still meanwhile."""
        if self._questions is None:
            context, owner = self.context, self.served.publication.owner
            self._questions = Questions(self.delivery, owner, context.broker, context.settings, context.clock, self.tell, self.extend)
        return await self._questions.ask(question, data, timeout)

    def tell(self, confirm: Confirm) -> None:
        """Tell the caller that its call waits for a person, or does so no longer."""
        if self.state < _ANSWERED:
            frame = self.frame("confirm")
            frame.confirm = confirm
            self.send(frame)

    def join(self, deadline: float) -> None:
        """Take in the deadline of a caller that joined the call, in monotonic seconds."""
        if self._questions is not None:
            deadline = self._questions.join(deadline)
        if deadline > self.delivery.deadline:
            self.extend(deadline)

    def extend(self, deadline: float) -> None:
        """Set a later deadline, in monotonic seconds."""
        self.delivery.deadline = deadline
        if self._invocation is not None:
            self._invocation.deadline = deadline
        self.context.extended(self)

    # -- once -------------------------------------------------------------------------------------

    @property
    def once(self) -> bool:
        """True if it must not happen twice."""
        return self.handler.effect == "once" or self.delivery.request.effect == "once"

    async def _begin_once(self, request: Request) -> None:
        """Mark that the handler of ``once`` work begins; the next step is its first one, since a worker that dies in between can't tell.

        Raises:
            ToolError: its arguments do not fit, or it must not begin.
            CallCancelled: it was stopped before it began.
            CancelledError: another worker has the call.
        """
        if self.state is _ENTERED:
            # Middleware calls the handler again.
            return
        if self.state >= _ANSWERED:
            raise CallCancelled(str(self.stopped or outcome.MOVED))
        if self.handler.check is not None:
            self.handler.check(request.arguments)
        # The mark may be set from here on, even if the server's answer is lost.
        self._move(_MARKED)
        try:
            beginning = await self.context.broker.steps.beginnings.begin(self.delivery)
        except BrokerError as error:
            raise outcome.unmarked(error, self.delivery) from None
        if beginning == "lost":
            self._move(_ANSWERED)
            self._report("lost")
            raise asyncio.CancelledError
        if beginning != "started":
            raise outcome.not_begun(beginning)
        self._move(_ENTERED)

    # -- answering --------------------------------------------------------------------------------

    def frame(self, kind: Any, error: ErrorInfo | None = None) -> Frame:
        """Make the next frame; text that gathered is sent before it."""
        stream = self._stream
        if stream is not None and stream.gathered:
            stream.pack()
        delivery, seq = self.delivery, self._seq
        self._seq = seq + 1
        frame = Frame(delivery.request.id, delivery.run, delivery.attempt, seq, kind, None, kind == "end", error)
        if delivery.epoch:
            frame.epoch = delivery.epoch
        if kind == "end" and self.session is not None and self.served.sticky:
            frame.state, frame.restarted = self.session.token, self.restarted
        if seq == 0:
            frame.worker = self.context.broker.instance
            frame.queued_ms = int(delivery.queued_ms * 10) / 10
        return frame

    def send(self, frame: Frame) -> None:
        """Send a frame that is not the last one."""
        self.context.broker.steps.outbox.send(self.delivery, encode(frame))

    def open_stream(self) -> Stream:
        """Return what sends the items of this run, made when it is first needed."""
        if self._stream is None:
            self._stream = Stream(self)
        return self._stream

    def _answer(self, result: ToolResult) -> None:
        if self.state >= _ANSWERED:
            return
        error = result.error
        if error is None and not result.success:
            error = ErrorInfo("tool_error", message="the tool reported a failure without a reason", origin="tool")
        if error is not None and self._retried_or_buried(error, retryable=error.retryable):
            return
        payload = self._last_frame(result, error)
        frees = error is not None and self.state is not _ENTERED
        self._move(_ANSWERED)
        self.context.broker.steps.endings.finish(self.delivery, payload, frees=frees)
        self._report("finished" if error is None else "failed", error)

    def _last_frame(self, result: ToolResult, error: ErrorInfo | None) -> bytes:
        """Return the frame that ends the call, after sending the files of its result, and texts and data that one frame can't hold."""
        limit = self.context.settings.max_frame
        for blob in result.content:
            self.open_stream().send_blob(blob)
        output, data = result.output, result.data
        if output is not None and len(output) * 4 > limit and len(output.encode("utf-8", "replace")) > limit:
            stream = self.open_stream()
            stream.send_pieces("output" if stream.has_text else "text", output)
            output = None
        if data is not None:
            document = encode_data(data)
            if len(document) > limit:
                self.open_stream().send_pieces("data", document.decode())
                data = None
            elif len(document) > _MOST_ENCODED_TWICE:
                data = msgspec.Raw(document)
        frame = self.frame("end", error)
        frame.response = output
        frame.data = data
        try:
            return encode(frame)
        except EnvelopeError:
            # The one thing left that UTF-8 may not express.
            frame.response = output and whole_text(output)
            return encode(frame)

    def _contain(self, error: BaseException) -> None:
        try:
            self._fail(error)
        except BaseException:  # noqa: BLE001 - the run must leave the worker all the same
            telemetry.log.exception("run.bug", id=self.delivery.request.id)
            info = ErrorInfo("tool_error", type_name(error), "what the handler raised can't be told", origin="tool")
            if self.state < _ANSWERED:
                self._end_with(self.frame("end", info))
            self._report("failed", info)

    def _fail(self, error: BaseException) -> None:
        if self.state >= _ANSWERED:
            return
        info = self.error_info(error)
        raised = error if is_crash(error, info) else None
        if not self._retried_or_buried(info, raised, retryable=is_retryable(error, info)):
            self._end_with(self.frame("end", info))
            self._report("failed", info, raised)

    def _retried_or_buried(self, error: ErrorInfo, raised: BaseException | None = None, *, retryable: bool) -> bool:
        """Have a failed request tried again, or set aside as a dead letter; return False when it is to be answered simply."""
        policy = self.handler.retry if retryable and self.state is _RUNNING else None
        if policy is not None and self.context.try_again(self, error):
            self._move(_ANSWERED)
            self._report("retried", error)
            return True
        if policy is None and self.delivery.replies:
            return False
        # No caller learns of this failure, or the service asked for retries and wants to know what they could not do.
        self._move(_ANSWERED)
        reason = "retries_exhausted" if policy is not None else "failed"
        self.context.broker.steps.endings.bury(self.delivery, reason, str(error), encode(self.frame("end", error)))
        self._report("dead", error, raised)
        report_buried(self.delivery, reason)
        return True

    def _end_with(self, frame: Frame) -> None:
        entered = self.state is _ENTERED
        self._move(_ANSWERED)
        self.context.broker.steps.endings.finish(self.delivery, encode(frame), frees=not entered)

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""
        if is_a(error, HandlerCrashed):
            return error.info
        return other_revision(error_of(error), self.delivery.request, self.served.publication)

    def _report(self, end: End, error: ErrorInfo | None = None, exception: BaseException | None = None) -> None:
        context, delivery = self.context, self.delivery
        stream, now = self._stream, context.clock()
        first = 0.0 if stream is None else stream.first
        report_end(end, delivery, self.handler.counts, context.sampling, now, self.began, first, self._seq, error, exception)


class _RunInvocation(Invocation):
    """The invocation of a handler that runs in this process."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        delivery = run.delivery
        super().__init__(run.loop, delivery.request, attempt=delivery.attempt, deadline=delivery.deadline)
        self._run = run

    def _stopped(self) -> ErrorInfo | None:
        return self._run.stopped

    @property
    def session_is_new(self) -> bool:
        session = self._run.session
        return session is not None and session.first == self._run.delivery.request.id

    @property
    def state(self) -> Any:
        run = self._run
        if run.session is None and run.served.opens_sessions:
            raise outcome.no_session(run.delivery.request)
        return None if run.session is None else run.session.value

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        item = Progress(done, total, message)
        if self._is_in_loop():
            self._run.emit(item)
        else:
            self._loop.call_soon_threadsafe(self._run.emit, item)

    async def caller(self) -> Caller:
        return await self._run.context.caller()

    async def confirm(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        self.check_cancelled()
        return await self._run.confirm(question, data, timeout)


class Stream(msgspec.Struct, eq=False):
    """Sends what a handler yields. Texts gather while earlier frames leave: several in one frame cost hardly more than one.

    Attributes:
        gathered: texts that were not sent yet.
        has_text: whether the caller was sent any text, or is about to be.
        blobs: how many blobs the caller was sent.
        first: when the first text was sent, in monotonic seconds; 0 before.
    """

    _run: Run
    _sent: int = 0
    _size: int = 0
    blobs: int = 0
    first: float = 0.0
    gathered: list[str] = []
    has_text: bool = False

    async def consume(self, items: Any) -> ToolResult:
        """Send the items of an async iterable; return the result that it yields last, or one without output.

        Raises:
            ToolError: it yielded more after its result, or more than a call may send.
            CancelledError: the run was answered meanwhile.
        """
        result: ToolResult | None = None
        run = self._run
        outbox = run.context.broker.steps.outbox
        iterator: AsyncIterator[Any] = aiter(items)
        try:
            async for item in iterator:
                if run.state >= _ANSWERED:
                    # The generator swallowed its cancellation: it is closed, or it would hold its slot for good.
                    raise asyncio.CancelledError
                if result is not None:
                    raise ToolError("the handler yielded more after its ToolResult", code="bad_stream")
                if type(item) is str and item:
                    self.send_text(item)
                elif item is None or (isinstance(item, str) and not item):
                    # Nothing is sent, so nothing else would make an endless generator give way.
                    await asyncio.sleep(0)
                elif isinstance(item, ToolResult):
                    result = checked(item, self.blobs)
                else:
                    self._send_item(item)
                # What gathers is bounded, so only what left can have filled the way to the server.
                if not self.gathered and outbox.congested:
                    await outbox.room()
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
        return result if result is not None else ToolResult(output=None if self.has_text else "")

    def send_text(self, text: str) -> None:
        """Send text, or gather it for the next frame.

        Raises:
            ToolError: the call has sent more than it may.
        """
        if not text:
            return
        self.has_text = True
        context = self._run.context
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            # Lone surrogates are replaced where text is cut into pieces.
            size = context.most_gathered + 1
        if size > context.most_gathered:
            self.send_pieces("text", text)
            return
        self._sent += size
        if self._sent > context.settings.max_output:
            self._count(0)
        if not self.gathered:
            context.broker.steps.outbox.before_sending(self.pack)
        self.gathered.append(text)
        self._size += size
        if self._size > context.most_gathered:
            self.pack()

    def pack(self) -> None:
        """Send the texts that gathered, as one frame."""
        texts, self.gathered, self._size = self.gathered, [], 0
        if texts:
            self.first = self.first or self._run.context.clock()
            frame = self._run.frame("text")
            if len(texts) == 1:
                frame.response = texts[0]
            else:
                frame.texts = texts
            self._run.send(frame)

    def send_pieces(self, kind: Any, text: str) -> None:
        """Send a text in frames of the largest size.

        Raises:
            ToolError: the call has sent more than it may.
        """
        self.first = self.first or self._run.context.clock()
        for piece in pieces(text, self._run.context.settings.max_frame):
            self._count(len(piece))
            frame = self._run.frame(kind)
            frame.response = piece
            self._run.send(frame)

    def send_blob(self, blob: Blob) -> None:
        """Send a blob, in as many frames as it needs.

        Raises:
            ToolError: the call has sent more than it may, or the blob's media type is no such thing.
        """
        if len(blob.media_type) > _MOST_MEDIA_TYPE:
            raise ToolError(f"a blob's media type has at most {_MOST_MEDIA_TYPE} characters", code="bad_result")
        self.blobs += 1
        # Base64 makes four bytes of three.
        step = self._run.context.settings.max_frame * 3 // 4
        for start in range(0, max(1, len(blob.data)), step):
            self._count(min(step, len(blob.data) - start))
            frame = self._run.frame("blob")
            frame.blob = Blob(blob.media_type, blob.data[start : start + step])
            frame.more = start + step < len(blob.data)
            self._run.send(frame)

    def _send_item(self, item: object) -> None:
        for piece in pieces_of(item, self.blobs):
            if isinstance(piece, str):
                self.send_text(piece)
            elif isinstance(piece, Blob):
                self.send_blob(piece)
            elif isinstance(piece, Progress):
                self._run.emit(piece)

    def _count(self, size: int) -> None:
        self._sent += size
        limit = self._run.context.settings.max_output
        if self._sent > limit:
            raise ToolError(f"the output is over the limit of {limit} bytes (TOOLBUS_MAX_OUTPUT)", code="output_limit")
