"""``Call``: one call in the caller's hand."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import Verdict
from toolbus.client.assembly import Assembly, only
from toolbus.client.events import Answered, Asked, Event, Finished, Reset, Text, size_of
from toolbus.client.grant import Grant
from toolbus.envelope import Frame, Request
from toolbus.results import ConfigurationError, ErrorInfo, ResultMeta, StreamReset, ToolError, ToolResult

_CANCELLED = ErrorInfo("cancelled", message="cancelled by the caller")


class Target(msgspec.Struct, frozen=True, gc=False):
    """What a call is for: a tool, or with an empty ``tool`` a service and config values for it."""

    tool: str
    service: str = ""
    config: Mapping[str, Any] = {}


class Desk(Protocol):
    """What a call needs of the bus that made it.

    Attributes:
        most_waiting: seconds for which a call's time may stand still, in all.
    """

    most_waiting: float

    def launch(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Resolve, check and publish; returns what is to be awaited when the call waits for a worker.

        Raises:
            ConfigurationError: an option is wrong; nothing was published.
        """

    def withdraw(self, call: Call) -> None:
        """Tell the broker that nobody waits for the call any more."""

    def inquire(self, call: Call, error: ErrorInfo) -> None:
        """End a call whose work must not happen twice: with ``error`` when it certainly did not happen, else as ``outcome_unknown``."""

    def forget(self, call: Call) -> None:
        """Drop a call that has ended."""

    def rearm(self, call: Call, now: float) -> None:
        """Take in that the call's deadline has changed, or its time stands still, or goes on."""

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Have the call look in a moment whether a frame is still missing."""


class Pause(msgspec.Struct):
    """A call's time stands still: its handler waits for a person.

    Attributes:
        run: whose handler that is.
        since, until: monotonic seconds; longer than ``until`` it does not wait.
    """

    run: str
    since: float
    until: float


class Call(msgspec.Struct, eq=False):
    """One call of a tool: an async context manager, and an async iterator of its text.

    Leaving the context early cancels the call. ``events()`` and ``result()`` never raise for the
    tool's failure; plain iteration raises ``ToolError`` when it fails and ``StreamReset`` when a new
    attempt diverges from what was already delivered.

    A Struct because it is made in C, and assembles frames only when there is more than one to a call.
    """

    _desk: Desk
    _done: asyncio.Future[ToolResult]
    id: str
    target: Target
    arguments: Any
    options: Mapping[str, Any]
    streaming: bool
    _buffer: int
    _started: float
    _result: ToolResult | None = None
    _assembly: Assembly | None = None
    _events: deque[Event] | None = None
    _arrived: asyncio.Event | None = None
    _buffered: int = 0
    _skip: int = 0
    _iterating: bool = False
    _launched: bool = False
    # The bus's business from here on.
    request: Request | None = None
    queue: str = ""
    entry: str = ""
    slot: int = 0
    idle_slot: int = 0
    gap_slot: int = 0
    idle_timeout: float = 0.0
    last_heard: float = 0.0
    # Monotonic seconds, without the pause that lasts; ``waited`` are the seconds of those that are over.
    deadline: float = 0.0
    waited: float = 0.0
    pause: Pause | None = None
    span: telemetry.CallSpan | None = None
    withdrawn: bool = False
    # What a model's call may be published as; a program's own has none.
    grant: Grant | None = None

    # -- for callers ------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the call has its result."""
        return self._result is not None

    async def __aenter__(self) -> Self:
        await self._launch()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        while await self._more():
            while self._events:
                event = self._next()
                if type(event) is Text:
                    if event.text:
                        yield event.text
                elif type(event) is Reset:
                    text = f"attempt {event.attempt} of {self.target.tool!r} diverges from the text already delivered; use events()"
                    raise StreamReset(text)
        if self._result is not None and self._result.error is not None:
            raise ToolError(self._result.error)

    async def events(self) -> AsyncIterator[Event]:
        """Everything that happens, in order; the last event is ``Finished``.

        Raises:
            RuntimeError: somebody else waits for this call's events.
        """
        while await self._more():
            while self._events:
                event = self._next()
                if type(event) is not Text or event.text:
                    yield event
        if self._result is not None:
            yield Finished(self._result)

    async def result(self) -> ToolResult:
        """The one result; what is still to come is drained. A cancelled wait cancels the call."""
        if self._result is not None:
            return self._result
        self.streaming = False
        if self._events is not None:
            self._events.clear()
            self._wake()
        try:
            if not self._launched:
                trouble = self._begin()
                if trouble is not None:
                    await trouble
            return await asyncio.shield(self._done) if self._iterating else await self._done
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End the call now, with a ``cancelled`` result; the handler is told. Returns at once."""
        self.complete_with(_CANCELLED)

    # -- for the bus ------------------------------------------------------------------------------

    def resume_from(self, position: Any) -> None:
        """Leave out the text that the caller has from before it re-attached.

        Raises:
            ConfigurationError: it is no number of characters.
        """
        self._skip = _characters(position)

    def feed(self, frame: Frame, now: float) -> None:
        """Take in a frame of this call."""
        assembly = self._assembly
        if assembly is None and frame.end_of_stream and frame.seq == 0 and not self.streaming:
            # Most calls are answered by one frame: putting nothing together saves a sixth of the caller's time.
            self._end(only(frame, self.id, self._elapsed_ms()))
            return
        self.last_heard = now
        assembly = self._assembled()
        events = assembly.feed(frame)
        if assembly.missing is not None and not self.gap_slot:
            self._desk.watch_gap(self, assembly.missing)
        if self.pause is not None and self.pause.run != assembly.run:
            # The worker that asked is gone; the run that replaces it asks anew.
            self._go_on(now)
        for event in events:
            if type(event) is Finished:
                if not frame.end_of_stream and assembly.missing is not None:
                    # Ended here for a gap: the worker still runs.
                    self._desk.withdraw(self)
                self._complete(event.result)
                return
            if type(event) is not Text:
                self._heed(event, now)
            if self.streaming:
                seen = self._unseen(event) if self._skip else event
                self._buffered += len(seen.text) if type(seen) is Text else size_of(seen)
                if self._events is None:
                    self._events = deque()
                self._events.append(seen)
        if self._buffered > self._buffer:
            self.complete_with(ErrorInfo("slow_consumer", message=f"more than {self._buffer} bytes wait to be read from this call"))
        elif self._events:
            self._wake()

    def look_for(self, missing: tuple[str, int]) -> None:
        """End the call if that frame is still missing; another one has its own time."""
        self.gap_slot = 0
        assembly = self._assembled()
        if self._result is not None or assembly.missing is None:
            return
        if assembly.missing != missing:
            self._desk.watch_gap(self, assembly.missing)
            return
        event = assembly.lose()
        self._desk.withdraw(self)
        self._complete(event.result)

    @property
    def ends(self) -> float:
        """When its time is up, monotonic seconds, with the pause that lasts as long as it may."""
        return self.deadline + (0.0 if self.pause is None else self.pause.until - self.pause.since)

    def _heed(self, event: Event, now: float) -> None:
        """Do what an event asks for beside being read."""
        if type(event) is Asked:
            self._stand_still(event.timeout, now)
        elif type(event) is Answered:
            self._go_on(now)
        elif type(event) is Reset:
            telemetry.count("toolbus.resets")
            self._skip = 0

    def _stand_still(self, seconds: float, now: float) -> None:
        self._go_on(now)
        # However often it asks: what its callers wait for is bounded.
        self.pause = Pause(self._assembled().run, now, now + min(seconds, self._desk.most_waiting - self.waited))
        self._desk.rearm(self, now)

    def _go_on(self, now: float) -> None:
        if self.pause is None:
            return
        took = max(0.0, min(now, self.pause.until) - self.pause.since)
        self.deadline += took
        self.waited += took
        self.pause = None
        self._desk.rearm(self, now)

    def _unseen(self, event: Event) -> Event:
        """The event without the text that the caller has from before it re-attached."""
        if not isinstance(event, Text):
            return event
        had, self._skip = self._skip, max(0, self._skip - len(event.text))
        return Text(event.text[had:])

    def complete_with(self, error: ErrorInfo) -> None:
        """End the call from this side, and tell the worker."""
        if self._result is None:
            self._desk.withdraw(self)
            self._complete(self._assembled().fail(error))

    def expire(self) -> None:
        """End the call because its time is up."""
        timeout = self.request.timeout if self.request is not None else 0
        self.give_up(ErrorInfo("deadline_exceeded", message=f"no result within {timeout:g} s", retryable=True))

    def give_up(self, error: ErrorInfo) -> None:
        """End the call although it may be running; for ``once`` work it is first asked whether it is."""
        if self._result is None and self.request is not None and self.request.effect == "once":
            self._desk.inquire(self, error)
        else:
            self.complete_with(error)

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""
        if self.span is not None:
            self.span.sent()
        if verdict.status == "queued":
            self.entry = verdict.entry
            if self.withdrawn:
                self._desk.withdraw(self)
            return
        if self.grant is not None and verdict.status != "unknown":
            # Nothing was published, so the permission is not used up.
            self.grant.published = False
        if self._result is None:
            self._complete(self._assembled().fail(_refusal(verdict, self)))

    def _elapsed_ms(self) -> float:
        return int((time.monotonic() - self._started) * 1e6) / 1000

    def _complete(self, result: ToolResult) -> None:
        meta = ResultMeta(self.id, result.meta.attempts, result.meta.worker, self._elapsed_ms())
        self._end(ToolResult(result.success, result.output, result.data, result.error, result.content, meta))

    def _end(self, result: ToolResult) -> None:
        self._result = result
        self._desk.forget(self)
        if self._arrived is not None:
            self._arrived.set()
        if not self._done.done():
            self._done.set_result(result)
        if telemetry.metering():
            service = "" if self.request is None else self.request.service
            telemetry.record_call(self.target.tool, service, result.meta.ms / 1000, result.error)
        if self.span is not None:
            self.span.end(result.error)

    # -- inside -----------------------------------------------------------------------------------

    def _assembled(self) -> Assembly:
        if self._assembly is None:
            self._assembly = Assembly()
        return self._assembly

    def _next(self) -> Event:
        """The next event that waits to be read; raises IndexError when there is none."""
        if self._events is None:
            raise IndexError("no event waits")
        event = self._events.popleft()
        self._buffered -= len(event.text) if type(event) is Text else size_of(event)
        return event

    async def _more(self) -> bool:
        """Wait until events can be read; False when there are no more to come."""
        if not self._launched:
            await self._launch()
        while not self._events:
            if self._result is not None:
                return False
            await self._arrival()
        return True

    async def _launch(self) -> None:
        if not self._launched:
            trouble = self._begin()
            if trouble is not None:
                await trouble

    def _begin(self) -> Coroutine[Any, Any, None] | None:
        # Wrong options raise here, and again at the next use: the call was not launched.
        trouble = self._desk.launch(self)
        self._launched = True
        return trouble

    async def _arrival(self) -> None:
        if self._arrived is None:
            self._arrived = asyncio.Event()
        if self._iterating:
            raise RuntimeError("somebody else waits for this call's events")
        self._iterating = True
        self._arrived.clear()
        try:
            await self._arrived.wait()
        finally:
            self._iterating = False

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()


def _refusal(verdict: Verdict, call: Call) -> ErrorInfo:
    service = call.request.service if call.request is not None else call.target.service
    if verdict.status == "full":
        message = f"the queue of {service!r} holds {verdict.depth} requests and takes no more now"
        return ErrorInfo("overloaded", message=message, retryable=True, retry_after=1.0, details={"depth": verdict.depth})
    if verdict.status == "absent":
        return ErrorInfo("unavailable", message=f"service {service!r} has no queue: none of its workers is registered", retryable=True)
    if verdict.status == "conflict":
        message = "the idempotency key stands for a call with other arguments or of another session; use another key for other work"
        return ErrorInfo("invalid_arguments", "idempotency_conflict", message)
    if verdict.status == "unknown":
        return ErrorInfo("outcome_unknown", message=f"the call may or may not have been published: {verdict.message}")
    if verdict.message.startswith("OOM"):
        return ErrorInfo("overloaded", message=f"the server is out of memory: {verdict.message}", retryable=True, retry_after=1.0)
    return ErrorInfo("unavailable", message=verdict.message, retryable=True)


def _characters(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"resume_from must be a number of characters, not {value!r}")
    return value
