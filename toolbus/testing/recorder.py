"""Stand in for a worker and a bus in a test: collect a handler's frames and answer its nested calls."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from toolbus.bus.broker.protocols import Beginning, Ending, Note
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.middleware.chain import Middleware
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.envelope import decode_frames, join_frames
from toolbus.bus.values.events import Event, Finished, Text
from toolbus.bus.values.options import CallOptions, merged
from toolbus.bus.values.results import Blob, EnvelopeError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.handling import Threads
from toolbus.bus.worker.invocation import Caller
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.outcome import result_of
from toolbus.bus.worker.run import Run, RunContext
from toolbus.bus.worker.statistics import Sampling

if TYPE_CHECKING:
    from toolbus.bus.broker.held.limits import Tallies
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker


class OwnTallies:
    """Counts for the middleware of one process, as ``broker.held.limits.Tallies`` keeps them for all."""

    def __init__(self) -> None:
        self._full: dict[str, float] = {}
        self._used: dict[tuple[str, int], int] = {}

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate; returns 0 when there was room, else the seconds until there is."""
        now = time.monotonic()
        full = max(self._full.get(name, 0.0), now) + period / limit
        wait = full - period - now
        # A rounding error is no wait: the limit is about whole intervals.
        if wait > 1e-6:
            return wait
        self._full[name] = full
        return 0.0

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota; returns 0 when there was some left, else the seconds until it starts anew."""
        now = time.time()
        interval = name, int(now // period)
        used = self._used.get(interval, 0)
        if used >= limit:
            return period - now % period
        self._used[interval] = used + 1
        return 0.0

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Count no usage: nobody asks for it."""


class NestedCall(msgspec.Struct, frozen=True):
    """A call that the handler made; ``options`` are those that would have gone to the bus."""

    tool: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one run of a handler.

    Attributes:
        result: the result that ``bus.call`` would have returned.
        events: the events that ``call.events()`` would have yielded, ending with ``Finished``.
        calls: the nested calls, in order.
    """

    result: ToolResult
    events: tuple[Event, ...]
    calls: tuple[NestedCall, ...]

    @property
    def texts(self) -> list[str]:
        """The pieces of text, as they were yielded."""
        return [event.text for event in self.events if isinstance(event, Text)]

    @property
    def text(self) -> str:
        """All text in one string."""
        return "".join(self.texts)

    @property
    def progress(self) -> list[Progress]:
        """The reported progress."""
        return [event for event in self.events if isinstance(event, Progress)]

    @property
    def blobs(self) -> list[Blob]:
        """The complete blobs."""
        return [event for event in self.events if isinstance(event, Blob)]


INSTANCE = "testing"

Confirm = bool | Callable[[ConfirmationRequest], bool | ConfirmationAnswer | None]
"""The answer to a handler's question, or a function that gives it; None means no answer."""


class Recorder:
    """A worker and its broker, as far as one run needs them; it assembles frames as a caller would."""

    def __init__(
        self,
        settings: Settings,
        threads: Threads,
        isolation: Isolation,
        middleware: tuple[Middleware, ...],
        answers: Mapping[str, object],
        confirm: Confirm,
    ) -> None:
        # It is each of the steps that a run uses.
        self.steps = self.outbox = self.endings = self.beginnings = self.snapshots = self.notes = self
        self.context = RunContext(
            broker=cast("WorkerBroker", self),
            settings=settings,
            threads=threads,
            isolation=isolation,
            middleware=middleware,
            most_gathered=settings.max_frame // 2,
            clock=time.monotonic,
            sampling=Sampling(self.note, sampled=False),
            caller=self.caller,
            # There are no slots, and no other attempt.
            ended=lambda run: None,
            stopped=lambda run: None,
            extended=self.arm,
            try_again=lambda run, error: False,
        )
        self.instance = INSTANCE
        self.tallies = cast("Tallies", OwnTallies())
        self.congested = False
        self._answers = answers
        self._confirm = confirm
        self._timer: asyncio.TimerHandle | None = None
        self._assembly = Assembly()
        self._events: list[Event] = []
        self._calls: list[NestedCall] = []

    def outcome(self) -> Outcome:
        """Return the outcome of the run, once it has ended."""
        for event in reversed(self._events):
            if isinstance(event, Finished):
                return Outcome(event.result, tuple(self._events), tuple(self._calls))
        raise RuntimeError("the run ended without a result")

    # -- the worker -------------------------------------------------------------------------------

    def note(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None:
        """Do nothing: there are no operators to tell."""

    def arm(self, run: Run) -> None:
        """Start the timer for a run's deadline; also called for the first deadline."""
        self.disarm()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, run.delivery.deadline - time.monotonic()), run.expire)

    def disarm(self) -> None:
        """Stop the timer when the run has ended."""
        if self._timer is not None:
            self._timer.cancel()

    async def caller(self) -> Caller:
        """Return the object that answers nested calls."""
        return self

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Answer a nested call with its stand-in."""
        given = dict(arguments or {})
        self._calls.append(NestedCall(tool, given, merged({}, cast("Mapping[str, Any]", options))))
        if tool not in self._answers:
            return ToolResult.fail(ErrorInfo("not_found", message=f"no stand-in for the tool {tool!r}; add one with answer({tool!r}, …)"))
        answer = self._answers[tool]
        try:
            value = answer(given) if callable(answer) else answer
            return result_of(await value if inspect.isawaitable(value) else value)
        except ToolError as error:
            return ToolResult.fail(error.error)

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Answer a handler's question as the test decided."""
        opened()
        answer = self._confirm(request) if callable(self._confirm) else self._confirm
        if isinstance(answer, bool):
            return ConfirmationAnswer(answer)
        return answer

    async def write(self, delivery: Delivery, note: Note) -> None:
        """Do nothing: no other worker could take the request over."""

    # -- the broker -------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery) -> Beginning:
        """Let every ``once`` handler begin."""
        return "started"

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Send the frames in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(pack)

    def forget(self, delivery: Delivery) -> None:
        """Do nothing: no snapshot is kept here."""

    async def room(self) -> None:
        """Return at once, since there is always room."""

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Add a frame."""
        frames, problems = decode_frames(join_frames([frame]), limit=sys.maxsize)
        if problems:
            raise EnvelopeError("; ".join(problems))
        for each in frames:
            self._events += self._assembly.feed(each)

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False) -> None:
        """Add the last frame."""
        self.send(delivery, frame)

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Add the last frame of a request that would become a dead letter."""
        self.send(delivery, frame)
