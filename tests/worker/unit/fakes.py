"""Fakes: what a worker's slots need, without a server and without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from toolbus import Retry, Settings, ToolError, tool
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import Beginning, Ending, Note
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.envelope import Frame, Request, decode_frames, join_frames
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.invocation import Caller
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.slots import Slots
from toolbus.testing.environment import OwnTallies


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events that were logged, with their fields."""
    return [record.getMessage() for record in caplog.records if record.name == "toolbus"]


def frame_of(payload: bytes) -> Frame:
    """The one frame in a payload."""
    [frame], problems = decode_frames(join_frames([payload]), limit=1 << 30)
    assert not problems
    return frame


def _frame(delivery: Delivery, payload: bytes) -> Frame:
    """The frame that a worker sent for a delivery."""
    frame = frame_of(payload)
    assert (frame.id, frame.run, frame.attempt) == (delivery.request.id, delivery.run, delivery.attempt)
    return frame


class End(NamedTuple):
    """The last frame of a call, and whether it frees the call's idempotency key, and forgets the snapshot of its session."""

    frame: Frame
    frees: bool
    forgets: bool


class Buried(NamedTuple):
    """A dead letter."""

    reason: str
    error: str
    frame: Frame


class FakeBroker:
    """A ``WorkerBroker`` without a server, and each of the steps that slots use.

    Attributes:
        accepts: whether ends are accepted at once, and not when ``accept`` is called.
        holding: what it took and has not answered, by entry.
        left: the calls of sessions that are left elsewhere.
        asked_before: before which calls that was asked, each time.
    """

    instance = "worker-1"
    congested = False
    accepts = True

    def __init__(self) -> None:
        self.steps = self.intake = self.upkeep = self.beginnings = self.outbox = self.endings = self.notes = self.ownership = (
            self.snapshots
        ) = self
        self.tallies = OwnTallies()
        self.beginning: Beginning = "started"
        self.begin_gate: asyncio.Event | None = None
        self.begun: list[Delivery] = []
        self.frames: list[Frame] = []
        self.ends: list[End] = []
        self.buried: list[Buried] = []
        self.handed_back: list[Delivery] = []
        self.released: list[str] = []
        self.offered: list[Delivery] = []
        self.noted: list[tuple[str, int, Ending]] = []
        self.retried: list[Delivery] = []
        self.retry_answers: list[Any] = []
        self.excused: list[tuple[Delivery, Note, int]] = []
        self.asked_for: list[int] = []
        self.questions: list[ConfirmationRequest] = []
        self.left_over: list[list[Delivery]] = []
        self.interrupts = self.rooms = self.recoveries = self.unregistered = self.closed = self.polls = 0
        self.died = False
        self.failure: Exception | None = None
        self.hand_back_failure: Exception | None = None
        self.slots: Slots | None = None
        self.holding: dict[bytes, Delivery] = {}
        self.left: list[bytes] = []
        self.asked_before: list[list[bytes]] = []
        self._unaccepted: list[Delivery] = []
        self._arrived: list[Delivery] = []
        self._interrupted = asyncio.Event()

    def arrive(self, *deliveries: Delivery) -> None:
        """Let the next ``take`` return these."""
        self._arrived += deliveries
        self._interrupted.set()

    async def take(self, slots: int) -> list[Delivery]:
        self.asked_for.append(slots)
        if self.failure is not None:
            raise self.failure
        if not self._arrived:
            await self._interrupted.wait()
        self._interrupted.clear()
        taken, self._arrived = self._arrived, []
        return taken

    def interrupt(self) -> None:
        self.interrupts += 1
        self._interrupted.set()

    async def recover(self) -> None:
        self.recoveries += 1
        if self.left_over and self.slots is not None:
            self.slots.on_recovered(self.left_over.pop(0))

    async def begin(self, delivery: Delivery) -> Beginning:
        self.begun.append(delivery)
        if self.begin_gate is not None:
            await self.begin_gate.wait()
        return self.beginning

    async def retry(self, delivery: Delivery) -> Delivery | None:
        self.retried.append(delivery)
        if self.retry_answers:
            answer = self.retry_answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        again = delivery.queue.held[delivery.entry] = delivery.again(delivery.attempt + 1, f"{delivery.run}+")
        return again

    async def write(self, delivery: Delivery, note: Note) -> None:
        self.excused.append((delivery, note, delivery.excused_attempts))
        if self.failure is not None:
            raise self.failure

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        if self.hand_back_failure is not None:
            raise self.hand_back_failure
        self.handed_back += deliveries
        for delivery in deliveries:
            delivery.queue.let_go(delivery)

    def held(self, service: str) -> int:
        return sum(each.request.service == service for each in self.holding.values())

    async def outlive(self, seconds: float) -> None:
        pass

    async def hand_over(self, delivery: Delivery) -> bool:
        self.offered.append(delivery)
        return False

    async def stop_recovering(self, seconds: float) -> None:
        """Have nothing to take over."""

    async def unregister(self, *, died: bool = False) -> None:
        self.unregistered += 1
        self.died = died
        if isinstance(self.hand_back_failure, Exception):
            raise self.hand_back_failure

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        self.questions.append(request)
        opened()
        return ConfirmationAnswer(True)

    async def before(self, deliveries: Sequence[Delivery]) -> list[list[bytes]]:
        self.asked_before.append([delivery.entry for delivery in deliveries])
        return [self.left] * len(deliveries)

    async def holds(self, delivery: Delivery) -> bool:
        return True

    def release(self, service: str, pair: tuple[str, str], state: str) -> None:
        self.released.append(state)

    def note(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None:
        self.noted.append((delivery.request.tool, delivery.attempt, ending))

    def before_sending(self, pack: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(pack)

    def flush_soon(self) -> None:
        pass

    async def room(self) -> None:
        self.rooms += 1
        self.congested = False

    def send(self, delivery: Delivery, frame: bytes) -> None:
        self.frames.append(_frame(delivery, frame))

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False, forgets: bool = False) -> None:
        self.ends.append(End(_frame(delivery, frame), frees, forgets))
        self._end(delivery)

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        self.buried.append(Buried(reason, error, _frame(delivery, frame)))
        self._end(delivery)

    def _end(self, delivery: Delivery) -> None:
        self._unaccepted.append(delivery)
        if self.accepts:
            self.accept()

    def accept(self, *, ended: bool = True) -> None:
        """Accept the ends that were sent until now; or refuse them, so that the calls go on elsewhere."""
        unaccepted, self._unaccepted = self._unaccepted, []
        for delivery in unaccepted:
            delivery.queue.let_go(delivery, ended=ended)

    async def aclose(self) -> None:
        self.closed += 1

    def statistics(self) -> dict[str, int]:
        return {}

    def errors(self) -> list[tuple[str, str]]:
        """The type and code of the error in each last frame."""
        return [("", "") if end.frame.error is None else (end.frame.error.type, end.frame.error.code) for end in self.ends]


class Bench:
    """The slots of one worker, and what they are made of."""

    def __init__(self, *tools: object, middleware: tuple[Any, ...] = (), **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = Settings.load({}, **{"concurrency": 2, "lease": 2.0, "grace": 5.0, **settings})
        self.broker = FakeBroker()
        served = {each.id: each for each in collect(list(tools), self.settings)}
        self.service = next(iter(served))
        isolation = Isolation(self.settings, [])
        self.nested_ended: list[tuple[str, str]] = []
        self.slots = Slots(
            self.settings,
            served,
            middleware,
            self.broker,
            isolation,
            self._caller,
            self._close_nested,
            clock=self.loop.time,  # type: ignore[arg-type]
        )
        for each in served.values():
            self.slots.sessions.open(each)
        self.broker.slots = self.slots
        self.stream = RequestStream(
            Keys("unit"),
            self.service,
            self.service,
            self.broker.instance,
            ServerClock(self.settings.lease, self.loop.time),
            self.settings,
            on_lost=self.slots.on_lost,
            on_let_go=self.slots.on_let_go,
            set_aside=lambda _, bad: pytest.fail(bad.reason),
        )
        self.broker.holding = self.stream.held
        self._serving: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)

    async def _caller(self) -> Caller:
        pytest.fail("no handler here calls a tool")

    async def _close_nested(self, user: str, session: str) -> None:
        self.nested_ended.append((user, session))

    def delivery(self, tool: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Delivery:
        """Hold a delivery of a call of a tool of the first service, ten seconds before its deadline."""
        number = next(self._numbers)
        of_request = {key: changes.pop(key) for key in tuple(changes) if key in Request.__struct_fields__}
        request = Request(
            **{"id": f"call-{number}", "agent": "a", "service": self.service, **of_request}, tool=tool, arguments=arguments or {}
        )
        made = Delivery(
            **{
                "request": request,
                "replies": "a",
                "entry": f"{number}".encode(),
                "epoch": 0,
                "attempt": 1,
                "deadline": self.loop.time() + 10.0,
                "queued_ms": 12.34,
                "run": f"run-{number}",
                "queue": self.stream,
                "fence": Fence(b"", b""),
                **changes,
            }
        )
        self.stream.held[made.entry] = made
        return made

    def serve(self) -> None:
        """Begin to take."""
        self._serving = self.loop.create_task(self.slots.serve())

    async def drained(self) -> None:
        """Stop taking, and wait until everything has ended."""
        self.slots.stop()
        if self._serving is not None:
            await self._serving
        self.slots.close()

    async def settle(self) -> None:
        """Let everything run that needs no time."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def run(self, name: str, arguments: dict[str, Any] | None = None, **changes: Any) -> End:
        """Run one call to its end, and return its last frame."""
        self.slots.start(self.delivery(name, arguments, **changes))
        await self.settle()
        [end] = self.broker.ends
        assert self.slots.running == 0
        return end

    async def begin(self, name: str, **changes: Any) -> Run:
        """Start a call and let its handler begin."""
        delivery = self.delivery(name, **changes)
        self.slots.start(delivery)
        self.slots.watch_deadlines()
        await self.settle()
        return self.slots._runs[delivery.run]


class Handlers:
    """The state that the handlers share with the running test, which has both as fixtures.

    Attributes:
        gate: what they wait for.
        seen: their notes.
    """

    gate: asyncio.Event
    seen: list[Any]


handlers = Handlers()


@tool(service="unit", replace=True)
async def echo(text: str) -> str:
    """Return a text."""
    return text


@tool(service="unit", replace=True)
async def hold(name: str = "") -> str:
    """Wait for the handlers.gate."""
    handlers.seen.append(name)
    await handlers.gate.wait()
    return name


@tool(service="unit", replace=True)
async def stubborn() -> str:
    """Refuse to be cancelled, for a minute."""
    until = asyncio.get_running_loop().time() + 60
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            while not handlers.gate.is_set():
                try:
                    await handlers.gate.wait()
                except asyncio.CancelledError:
                    if asyncio.get_running_loop().time() >= until:
                        raise
                    handlers.seen.append("refused")
    return "done"


@tool(service="unit", replace=True, effect="once")
async def pay() -> str:
    """Wait for the gate, and have an effect."""
    handlers.seen.append("began")
    await handlers.gate.wait()
    return "paid"


@tool(service="unit", replace=True, retry=Retry(attempts=3, delay=1.0, jitter=0.0))
async def flaky() -> str:
    """Fail."""
    handlers.seen.append("tried")
    raise ToolError("no", retryable=True)
