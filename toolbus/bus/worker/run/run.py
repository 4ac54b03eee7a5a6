"""One run of a handler: from a delivery to frames, the last of which ends the call."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import session_of
from toolbus.bus.support.display import shortened
from toolbus.bus.support.safe_text import is_a, type_name
from toolbus.bus.values.confirmations import ConfirmationAnswer
from toolbus.bus.values.encoding import exact_text
from toolbus.bus.values.envelope import Confirm, Frame, Request, encode
from toolbus.bus.values.results import BrokerError, CallCancelled, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.worker.isolation.pool import HandlerCrashed
from toolbus.bus.worker.run import reasons
from toolbus.bus.worker.run.handling import Handling
from toolbus.bus.worker.run.invocation import Caller, Invocation, enter
from toolbus.bus.worker.run.outcome import (
    End,
    error_of,
    is_crash,
    is_retryable,
    last_frame,
    other_revision,
    report_buried,
    report_end,
    result_of,
)
from toolbus.bus.worker.run.questions import Questions
from toolbus.bus.worker.run.reasons import NEXT, RunContext, RunState
from toolbus.bus.worker.run.stream import Stream, forget, kept
from toolbus.bus.worker.serving.handlers import Handler, Served
from toolbus.bus.worker.transitions import BadTransitionError

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

_CREATED, _RUNNING, _MARKED, _ENTERED = RunState.CREATED, RunState.RUNNING, RunState.MARKED, RunState.ENTERED
_ANSWERED, _ENDED = RunState.ANSWERED, RunState.ENDED
# Seconds within which a worker that goes down has abandoned its runs.
_GOING_DOWN = 0.05

# Characters of the text beside progress; what is cut is said.
_MOST_PROGRESS_TEXT = 8_000

# A handler may ask for its invocation in several threads at once.
_making = threading.Lock()


class Run(msgspec.Struct, eq=False):
    """One start of a handler, from its delivery to its one last frame.

    The last frame is sent when the handler ends, or by ``stop`` before that. What a stopped handler still produces is dropped.

    A Struct because it is made in C: with as many fields as it has, that saves the worker half a µs a call.

    Attributes:
        context: what the runs of one worker share.
        task: the task of ``execute``, until the run has ended.
        slot: of the deadline, for its removal; 0 while it has none.
        stopped: why the handler was told to stop, or None.
        state: how far the run has come.
        abandoned: whether its worker ends without waiting for it.
        restarted: whether it runs on a new state of its session, although it was meant for another one.
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
    _seq: int = 0
    _started: float = 0.0
    _stream: Stream | None = None
    _handling: Handling | None = None
    _invocation: Invocation | None = None
    _questions: Questions | None = None

    def _move(self, state: RunState) -> None:
        if state not in NEXT[self.state]:
            raise BadTransitionError(self.state, state)
        self.state = state

    # -- the run's own life -----------------------------------------------------------------------

    async def execute(self) -> None:
        """Run the handler to its end and answer. Nothing that the handler raises is raised from here."""
        self._move(_RUNNING)
        self._started = self.context.clock()
        request = self.delivery.request
        enter(self)
        try:
            if request.events:
                self.send(self.frame("start"))
            around = self.context.middleware or self.served.restores_sessions or telemetry.active()
            if self.handler.coroutine and not around:
                # The most frequent kind, without a coroutine in between.
                if self.once:
                    await self.begin_once(request)
                self._answer(result_of(await self.handler.start(request)))
            else:
                self._handling = Handling(self)
                self._answer(await kept(self, self._handling))
        except asyncio.CancelledError:
            # A stopped run has been answered. Otherwise the worker is going down, or the handler let a cancellation of its own out.
            if self.state < _ANSWERED:
                if self.task is None or self.abandoned:
                    raise
                # The handler may have cancelled its own task. A worker that goes down abandons its runs now, which cancels once more.
                await asyncio.sleep(_GOING_DOWN if self.task.cancelling() else 0)
                self._fail(ToolError("the handler was cancelled from within", code="CancelledError"))
        except BaseException as error:
            # Whatever a handler raises is contained and becomes its answer: raised from here, SystemExit and
            # KeyboardInterrupt would end the event loop. A run that is closed from outside gets GeneratorExit too.
            if is_a(error, GeneratorExit) and not self._is_running():
                raise
            self._contain(error)
        finally:
            try:
                if self._handling is not None:
                    await self._handling.join()
            finally:
                self._leave()

    def _is_running(self) -> bool:
        """Return whether the event loop is at a step of this run's task."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:
            return False

    def expire(self) -> None:
        """End the run because its time is up."""
        self.stop(reasons.deadline_passed(self.state, self.delivery.request.timeout, self._waited))

    def cancel(self, why: str = "cancelled") -> None:
        """End the run because its caller gave it up; ``why`` is the type of the error that the caller has."""
        self.stop(reasons.given_up(self.state, why, self.delivery.request.timeout, self._waited, once=self.once))

    def interrupt(self) -> bool:
        """End the run because its worker leaves; return whether another worker may run the request, since it was not answered."""
        if self.state < _ANSWERED:
            reason = reasons.worker_stopped(self.state)
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
            self._report(unanswered if error is None else "cancelled" if error.type == "cancelled" else "failed", error)
            if error is not None:
                if not unbegun and self.served.restores_sessions:
                    forget(self)
                self.context.broker.finish(self.delivery, encode(self.frame("end", error)), frees=not entered)
        if self._stream is not None:
            self._stream.gathered.clear()
        self.stop_handler(error or (reasons.MOVED if unanswered == "lost" else reasons.LEAVING))
        if self._handling is not None:
            self._handling.stop()
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
        self.stop_handler(reasons.LEAVING)
        task = self.task
        if task is None:
            raise RuntimeError("the run has not begun")
        task.cancel()
        if self.state is _CREATED:
            self._leave()
        return task

    @property
    def unbegun(self) -> bool:
        """True until it has begun, or was answered."""
        return self.state is _CREATED

    @property
    def began(self) -> float:
        """The monotonic time at which it began to run; 0 before."""
        return self._started

    @property
    def _waited(self) -> float:
        # An earlier attempt may have run most of the time since the request was published.
        return self.delivery.queued_ms if self.delivery.attempt == 1 else 0.0

    @property
    def stuck(self) -> bool:
        """True if the handler still runs although it was told to stop."""
        return self.state is _ANSWERED and self.task is not None and not self.task.done()

    def stop_handler(self, reason: ErrorInfo) -> None:
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
            self.task = self._invocation = self._questions = self._stream = self._handling = None

    # -- for the invocation -----------------------------------------------------------------------

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
        """True if this call opened its session at this worker."""
        sessions = self.served.sessions
        return sessions is not None and sessions.opened_by(self.delivery.request)

    def emit(self, item: Progress) -> None:
        """Send progress to the caller."""
        if self.state < _ANSWERED:
            if len(item.message) > _MOST_PROGRESS_TEXT:
                item = Progress(item.done, item.total, shortened(exact_text(item.message), _MOST_PROGRESS_TEXT))
            frame = self.frame("progress")
            frame.progress = item
            self.send(frame)

    async def caller(self) -> Caller:
        """Return the bus for nested calls."""
        return await self.context.caller()

    async def confirm(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask a person, for at most ``timeout`` seconds; the call's time stands still meanwhile."""
        if self._questions is None:
            context = self.context
            self._questions = Questions(self, context.broker, context.settings.max_timeout, context.settings.max_request, context.clock)
        return await self._questions.ask(question, data, timeout)

    @property
    def session_state(self) -> Any:
        """The state of this call's session, as its service made it.

        Raises:
            ToolError: the service makes one for each session, and this call is in none.
        """
        if self.served.opens_sessions and session_of(self.delivery.request) is None:
            raise reasons.no_session(self.delivery.request)
        sessions = self.served.sessions
        return None if sessions is None else sessions.value(self.delivery.request)

    def now(self) -> float:
        """Return monotonic seconds."""
        return self.context.clock()

    # -- for questions ----------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The owner of the tool."""
        return self.served.publication.owner

    def tell(self, confirm: Confirm) -> None:
        """Tell the caller that its call waits for a person, or does so no longer."""
        if self.state < _ANSWERED:
            frame = self.frame("confirm")
            frame.confirm = confirm
            self.send(frame)

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

    async def begin_once(self, request: Request) -> None:
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
            raise CallCancelled(str(self.stopped or reasons.MOVED))
        if self.handler.check is not None:
            self.handler.check(request.arguments)
        # The mark may be set from here on, even if the server's answer is lost.
        self._move(_MARKED)
        try:
            beginning = await self.context.broker.begin(self.delivery)
        except BrokerError as error:
            raise reasons.unmarked(error, self.delivery.attempt) from None
        if beginning == "lost":
            self._move(_ANSWERED)
            self._report("lost")
            raise asyncio.CancelledError
        if beginning != "started":
            raise reasons.not_begun(beginning)
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
        if kind == "end" and self.served.sessions is not None:
            frame.state, frame.restarted = self.served.sessions.token(delivery.request), self.restarted
        if seq == 0:
            frame.worker = self.context.broker.instance
            frame.queued_ms = int(delivery.queued_ms * 10) / 10
        return frame

    def send(self, frame: Frame) -> None:
        """Send a frame that is not the last one."""
        self.context.broker.send(self.delivery, encode(frame))

    def open_stream(self) -> Stream:
        """Return what sends the items of this run, made when it is first needed."""
        if self._stream is None:
            context = self.context
            self._stream = Stream(self, context.broker, context.settings, context.most_gathered)
        return self._stream

    def _answer(self, result: ToolResult) -> None:
        if self.state >= _ANSWERED:
            return
        error = result.error
        if error is None and not result.success:
            error = ErrorInfo("tool_error", message="the tool reported a failure without a reason", origin="tool")
        if error is not None and self._given_up(error, retryable=error.retryable):
            return
        payload = last_frame(self, result, error, self.context.settings.max_frame)
        frees = error is not None and self.state is not _ENTERED
        self._move(_ANSWERED)
        self.context.broker.finish(self.delivery, payload, frees=frees)
        self._report("finished" if error is None else "failed", error)

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
        if not self._given_up(info, raised, retryable=is_retryable(error, info)):
            self._end_with(self.frame("end", info))
            self._report("failed", info, raised)

    def _given_up(self, error: ErrorInfo, raised: BaseException | None = None, *, retryable: bool) -> bool:
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
        self.context.broker.bury(self.delivery, reason, str(error), encode(self.frame("end", error)))
        self._report("dead", error, raised)
        report_buried(self.delivery, reason)
        return True

    def _end_with(self, frame: Frame) -> None:
        entered = self.state is _ENTERED
        self._move(_ANSWERED)
        self.context.broker.finish(self.delivery, encode(frame), frees=not entered)

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""
        if is_a(error, HandlerCrashed):
            return error.info
        return other_revision(error_of(error), self.delivery.request, self.served.publication)

    def _report(self, end: End, error: ErrorInfo | None = None, exception: BaseException | None = None) -> None:
        context, delivery = self.context, self.delivery
        stream, now = self._stream, context.clock()
        first = 0.0 if stream is None else stream.first
        report_end(end, delivery, self.handler.counts, context.sampling, now, self._started, first, self._seq, error, exception)
