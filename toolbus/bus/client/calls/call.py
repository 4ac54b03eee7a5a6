"""``Call``: one call of a tool, from its publication to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.client.calls.assembly import Assembly, EventBuffer
from toolbus.bus.client.calls.refusals import refusal_of
from toolbus.bus.client.confirmations import Grant
from toolbus.bus.client.refusing import raised
from toolbus.bus.values.envelope import NOT_TAKEN, Frame, Request, result_of_frame
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text, size_of
from toolbus.bus.values.options import characters
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, ResultMeta, StreamReset, ToolError, ToolResult, deadline_exceeded

# Bytes of unread events above which a reader lags.
_LAGS = 65_536
_LOST = (
    "; what the server held for this caller is gone, and this call or its answer may be: the caller was unheard for too long, or the server"
    " lost data. Look whether the call took effect before you make it again"
)
_CANCELLED = ErrorInfo("cancelled", message="cancelled by the caller")


class CallTarget(msgspec.Struct, frozen=True, gc=False):
    """The tool that is called; with an empty ``tool``, a service and the config values for it."""

    tool: str
    service: str = ""
    config: Mapping[str, Any] = {}


class CallHost(Protocol):
    """The part of a bus that publishes a call and keeps track of it.

    Attributes:
        most_waiting: seconds for which a call's time may stand still, in all.
        early_frames: how many frames came while earlier ones of their runs were missing.
    """

    most_waiting: float
    early_frames: int

    def launch(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Resolve, check and publish; returns what is to be awaited when the call waits for a worker.

        Raises:
            ConfigurationError: an option is wrong; nothing was published.
        """

    def service_of(self, target: CallTarget) -> str:
        """Return the service of a target, or an empty text for one that is not known."""

    def withdraw(self, call: Call, why: str) -> None:
        """Tell the broker that the caller no longer waits for the call, and the type of the error that it has instead."""

    def inquire(self, call: Call, error: ErrorInfo) -> None:
        """End a call with ``error`` and what became of it; a ``once`` call that may have begun as ``outcome_unknown``."""

    def unfinished(self, call: Call, error: ErrorInfo) -> ErrorInfo:
        """Return the error of a call whose time was up while a worker had it."""

    def held_up(self, call: Call) -> str:
        """Return why a call is not published yet, as the end of a message; empty when nothing is known to hold it up."""

    def forget(self, call: Call) -> None:
        """Drop a call that has ended."""

    def rearm(self, call: Call, now: float) -> None:
        """Move the call's timers after its deadline changed, or a pause began or ended."""

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Let the call check later whether a frame is still missing."""


class Pause(msgspec.Struct):
    """A pause of a call's deadline while its handler waits for a confirmation.

    Attributes:
        run: the run whose handler waits.
        since, until: monotonic seconds; the deadline goes on at ``until`` at the latest.
    """

    run: str
    since: float
    until: float


class Call(msgspec.Struct, eq=False):
    """One call of a tool: an async context manager, and an async iterator of its text.

    Leaving the context early cancels the call. ``events()`` and ``result()`` never raise for the
    tool's failure; plain iteration raises ``ToolError`` when it fails and ``StreamReset`` when a new
    attempt diverges from what was already delivered.

    It is a Struct because those are made in C, and it assembles frames only when a call has more than one.
    """

    _host: CallHost
    _done: asyncio.Future[ToolResult]
    id: str
    target: CallTarget
    arguments: Any
    options: Mapping[str, Any]
    streaming: bool
    _limit: int
    _started: float
    _result: ToolResult | None = None
    _assembly: Assembly | None = None
    _events: EventBuffer | None = None
    _skip: int = 0
    _launched: bool = False
    # True when the call has its result.
    done: bool = False
    # The host sets these.
    request: Request | None = None
    queue: str = ""
    entry: str = ""
    slot: int = 0
    idle_slot: int = 0
    gap_slot: int = 0
    idle_timeout: float = 0.0
    last_heard: float = 0.0
    # Monotonic seconds, without the current pause; ``waited`` are the seconds of the pauses that are over.
    deadline: float = 0.0
    waited: float = 0.0
    # How long it had waited for a worker, as far as that is known.
    queued_ms: float = 0.0
    pause: Pause | None = None
    span: telemetry.CallSpan | None = None
    # Why the caller no longer waits: the type of an error.
    withdrawn: str = ""
    # True for a call that goes on when this caller leaves, since another process comes for its answer.
    lasting: bool = False
    # The token of the session's state that answered.
    state: str = ""
    # True when what the server held of it may be lost.
    lost: bool = False
    # The permit of a model's call; a program's own call needs none.
    grant: Grant | None = None

    # -- for callers ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._launch()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        buffer = self._buffer()
        while await self._more():
            while buffer.events:
                event = buffer.take()
                if type(event) is Text and event.text:
                    yield event.text
                elif type(event) is Reset:
                    text = f"attempt {event.attempt} of {self.target.tool!r} diverges from the text already delivered; use events()"
                    raise StreamReset(text)
        if self._result is not None and self._result.error is not None:
            raise ToolError(self._result.error)

    async def events(self) -> AsyncIterator[Event]:
        """Yield everything that happens, in order; the last event is ``Finished``.

        Raises:
            RuntimeError: another task waits for this call's events.
        """
        buffer = self._buffer()
        while await self._more():
            while buffer.events:
                event = buffer.take()
                if type(event) is not Text or event.text:
                    yield event
        if self._result is not None:
            yield Finished(self._result)

    async def result(self) -> ToolResult:
        """Wait for the result; events that were not read are dropped. A cancelled wait cancels the call."""
        if self._result is not None:
            return self._result
        self.streaming = False
        if self._events is not None:
            self._events.clear()
        try:
            if not self._launched:
                trouble = self._begin()
                if trouble is not None:
                    await trouble
            buffer = self._events
            # A task that iterates goes on when this wait is cancelled.
            return await asyncio.shield(self._done) if buffer is not None and buffer.is_awaited else await self._done
        except asyncio.CancelledError:
            self.cancel()
            task = asyncio.current_task()
            if task is None or task.cancelling() or self._result is None:
                raise
            # It was another task's wait that was cancelled, and the call with it.
            return self._result

    def cancel(self) -> None:
        """End the call now, with a ``cancelled`` result; the handler is told. Returns at once."""
        self.complete_with(_CANCELLED)

    @property
    def unread(self) -> int:
        """About how many bytes of memory its unread events take, also after its end; with the text of its result when the reader lags."""
        held = 0 if self._events is None else self._events.held
        if held > _LAGS:
            held += 0 if self._assembly is None else sum(map(len, self._assembly.text))
            held += 0 if self._result is None else len(self._result.output or "")
        return held

    def drop(self, error: ErrorInfo) -> None:
        """End the call with ``error``, even if it has ended, and forget its text and what was not read."""
        if self._result is None:
            self._assembly = None
            self.complete_with(error)
        else:
            self._result = ToolResult(success=False, error=error, meta=self._result.meta)
        if self._events is not None:
            self._events.clear()

    # -- for the bus ------------------------------------------------------------------------------

    def resume_from(self, position: Any) -> None:
        """Leave out the text that the caller received before it attached again.

        Raises:
            ConfigurationError: ``position`` is no number of characters.
        """
        self._skip = characters(position, "resume_from")

    def attached(self, request: Request, deadline: float) -> None:
        """Take note that the call reads the replies to another one, until ``deadline`` (monotonic seconds)."""
        self.request, self.deadline, self._launched = request, deadline, True

    def feed(self, frame: Frame, now: float) -> None:
        """Process a frame of this call, which arrived at ``now`` (monotonic seconds)."""
        assembly = self._assembly
        if assembly is None and frame.end_of_stream and frame.seq == 0 and not self.streaming:
            # Most calls are answered by one frame: assembling nothing saves a sixth of the caller's time.
            self.state = frame.state
            self._end(result_of_frame(frame, self.id, self._elapsed_ms()))
            return
        self.last_heard = now
        assembly = self._assembled()
        events = assembly.feed(frame)
        if assembly.missing is not None:
            self._note_gap(assembly.missing)
        if self.pause is not None and self.pause.run != assembly.run.token:
            # The worker that asked is gone; the run that replaces it asks again.
            self._resume(now)
        for event in events:
            if type(event) is Finished:
                if not frame.end_of_stream and assembly.missing is not None:
                    # The call ended here because of a gap, but its worker still runs it.
                    self._host.withdraw(self, "outcome_unknown")
                    self._give_up(event.result)
                    return
                self.state = assembly.state
                self._complete(event.result)
                return
            if type(event) is not Text:
                self._react(event, now)
            if self.streaming:
                seen = self._unseen(event) if self._skip else event
                buffer = self._events or self._buffer()
                buffer.size += len(seen.text) if type(seen) is Text else size_of(seen)
                buffer.events.append(seen)
        if (waiting := self._events) is None:
            return
        if waiting.is_over(self._limit):
            self._refuse_slow_reader()
        elif waiting.events:
            waiting.wake()

    def _note_gap(self, missing: tuple[str, int]) -> None:
        self._host.early_frames += 1
        if not self.gap_slot:
            self._host.watch_gap(self, missing)

    def look_for(self, missing: tuple[str, int]) -> None:
        """End the call if this frame is still missing; if another one is, check again later."""
        self.gap_slot = 0
        assembly = self._assembled()
        if self._result is not None or assembly.missing is None:
            return
        if assembly.missing != missing:
            self._host.watch_gap(self, assembly.missing)
            return
        event = assembly.lose()
        self._host.withdraw(self, "outcome_unknown")
        self._give_up(event.result)

    @property
    def ends(self) -> float:
        """Monotonic seconds at which the call expires if its current pause lasts as long as it may."""
        return self.deadline + (0.0 if self.pause is None else self.pause.until - self.pause.since)

    @property
    def waited_in_all(self) -> float:
        """Seconds by which the deadline is later than the request's timeout says."""
        return self.ends - self.deadline + self.waited

    def _react(self, event: Event, now: float) -> None:
        """Pause or resume the deadline, or count a reset, as an event demands."""
        if type(event) is Started:
            self.queued_ms = event.queued_ms if event.attempt == 1 else 0.0
        elif type(event) is Asked:
            self._pause(event.timeout, now)
            if self.grant is not None and self.grant.on_asked is not None:
                self.grant.on_asked(event)
        elif type(event) is Answered:
            self._resume(now)
        elif type(event) is Reset:
            telemetry.count("toolbus.resets")
            self._skip = 0

    def _pause(self, seconds: float, now: float) -> None:
        self._resume(now)
        # The sum of all pauses is bounded, so that a handler that asks again and again does not hold its caller forever.
        self.pause = Pause(self._assembled().run.token, now, now + min(seconds, self._host.most_waiting - self.waited))
        self._host.rearm(self, now)

    def _resume(self, now: float) -> None:
        if self.pause is None:
            return
        took = max(0.0, min(now, self.pause.until) - self.pause.since)
        self.deadline += took
        self.waited += took
        self.pause = None
        self._host.rearm(self, now)

    def _unseen(self, event: Event) -> Event:
        """Return the event without the text that the caller received before it attached again."""
        if not isinstance(event, Text):
            return event
        had, self._skip = self._skip, max(0, self._skip - len(event.text))
        return Text(event.text[had:])

    def complete_with(self, error: ErrorInfo) -> None:
        """End the call from this side, and tell the worker."""
        if self._result is None:
            self._host.withdraw(self, error.type)
            self._give_up(self._assembled().fail(error))

    def expire(self) -> None:
        """End the call because its deadline has passed."""
        timeout = self.options.get("timeout") or (self.request.timeout if self.request is not None else 0)
        why = "" if self.entry else self._host.held_up(self)
        error = deadline_exceeded(f"no result within {timeout:g} s{why}")
        if self._result is None and self._assembly is not None:
            self.give_up(self._host.unfinished(self, error))
        elif self._result is None and self.entry:
            self._host.inquire(self, error)
        else:
            self.give_up(error)

    def give_up(self, error: ErrorInfo) -> None:
        """End the call although it may be running; the broker is first asked whether a ``once`` call has begun."""
        if self._result is None and self.request is not None and self.request.effect == "once":
            self._host.inquire(self, error)
        else:
            self.complete_with(error)

    def settle(self, verdict: Verdict) -> None:
        """Process the broker's answer to the publication."""
        if verdict.status == "queued":
            self.entry = verdict.entry
            if self.withdrawn:
                self._host.withdraw(self, self.withdrawn)
            return
        if self.grant is not None and verdict.status != "unknown":
            # Nothing was published, so the permission can be used again.
            self.grant.published = False
        if self._result is None:
            service = self.request.service if self.request is not None else self.target.service
            self._complete(self._assembled().fail(refusal_of(verdict, service)))

    def _elapsed_ms(self) -> float:
        return int((time.monotonic() - self._started) * 1e6) / 1000

    def _complete(self, result: ToolResult) -> None:
        meta = ResultMeta(self.id, result.meta.attempts, result.meta.worker, self._elapsed_ms(), restarted=result.meta.restarted)
        self._end(ToolResult(result.success, result.output, result.data, result.error, result.content, meta))

    def _give_up(self, result: ToolResult) -> None:
        """End the call without an answer."""
        error = result.error
        # The server has said of one that was not taken that it did not run.
        if self.lost and error is not None and error.type != "cancelled" and error.code != NOT_TAKEN:
            result = msgspec.structs.replace(result, error=msgspec.structs.replace(error, message=f"{error.message}{_LOST}"))
        self._complete(result)

    def _end(self, result: ToolResult) -> None:
        self._result = result
        self.done = True
        self._host.forget(self)
        if self._events is not None:
            self._events.wake()
        if not self._done.done():
            self._done.set_result(result)
        if telemetry.metering():
            service = self._host.service_of(self.target) if self.request is None else self.request.service
            telemetry.record_call(self.target.tool, service, result.meta.ms / 1000, result.error)
        if self.span is not None:
            self.span.end(result.error)

    # -- inside -----------------------------------------------------------------------------------

    def _assembled(self) -> Assembly:
        if self._assembly is None:
            self._assembly = Assembly()
        return self._assembly

    def _buffer(self) -> EventBuffer:
        if self._events is None:
            self._events = EventBuffer()
        return self._events

    def _refuse_slow_reader(self) -> None:
        self.complete_with(
            ErrorInfo("slow_consumer", message=f"more than {self._limit} bytes wait to be read from this call (TOOLBUS_CALL_BUFFER)")
        )

    async def _more(self) -> bool:
        """Wait until events can be read; False when no more will come."""
        await self._launch()
        buffer = self._buffer()
        while not buffer.events and self._result is None:
            await buffer.arrival()
        return bool(buffer.events)

    async def _launch(self) -> None:
        # A call that was cancelled before is not published any more.
        if not self._launched and self._result is None and (trouble := self._begin()) is not None:
            await trouble

    def _begin(self) -> Coroutine[Any, Any, None] | None:
        try:
            trouble = self._host.launch(self)
        except ConfigurationError as error:
            # Wrong options raise again at the next use, since the call was not launched.
            return raised(error)
        self._launched = True
        # A caller that tries again and again must not starve other tasks, and with them the news of the registry.
        return asyncio.sleep(0) if trouble is None and self._result is not None else trouble
