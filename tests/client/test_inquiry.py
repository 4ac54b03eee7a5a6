"""A ``once`` call that is given up: the broker is asked whether it began, and what it answers decides how the call ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from tests.client.frames import run
from tests.servers import eventually
from toolbus import ErrorInfo, Settings
from toolbus.bus.broker import agent
from toolbus.bus.broker.protocols import Fate
from toolbus.bus.client.calls import connection as inquiry
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.values.envelope import Request

pytestmark = pytest.mark.anyio

ERROR = ErrorInfo("deadline_exceeded", message="too late")


class Broker:
    """An agent's broker that records which calls are asked about, and answers when the test says so."""

    agent = "agent"

    def __init__(self) -> None:
        self.requests = self
        self.asked: list[tuple[Request, str, str, float]] = []
        self.answers: list[Callable[[Fate], None]] = []

    async def open(self, listener: object) -> None:
        """Connect to nothing."""

    async def aclose(self) -> None:
        """Leave nothing behind."""

    def publish(self, *_: object) -> None:
        """Send nothing."""

    def cancel(
        self,
        request: Request,
        queue: str,
        entry: str,
        on_fate: Callable[[Fate], None] | None = None,
        *,
        waited: float = 0.0,
        why: str = "cancelled",
    ) -> None:
        """Record an inquiry; a plain cancellation needs no answer."""
        if on_fate is not None:
            self.asked.append((request, queue, entry, waited))
            self.answers.append(on_fate)


class Stage:
    """A bus over a broker that does nothing by itself, and a ``once`` call that it has published."""

    def __init__(self, broker: Broker, bus: Dispatcher, call: Call) -> None:
        self.broker = broker
        self.bus = bus
        self.call = call

    async def error(self) -> ErrorInfo:
        """The error with which the call ended."""
        assert self.call.done
        error = (await self.call.result()).error
        assert error is not None
        return error


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """Publish a ``once`` call through a bus, and give it up."""
    broker = Broker()
    monkeypatch.setattr(agent, "AgentBroker", lambda _: broker)
    bus = Dispatcher(Settings.load({}))
    await bus.open()
    found = SimpleNamespace(service="s", queue="q", queue_limit=0, config={}, effect="once", digest="", usual=0.0, sticky=False)
    monkeypatch.setattr(bus, "_resolve", lambda *_: found)
    call = bus.make_call(CallTarget("t"), {}, {}, streaming=False)
    assert bus.launch(call) is None
    call.entry, call.waited = "1-0", 2.5
    call.give_up(ERROR)
    yield Stage(broker, bus, call)
    await bus.aclose()


async def test_the_broker_is_asked_about_the_entry(stage: Stage) -> None:
    """The inquiry names the queue, the entry and the time by which the deadline moved; until the answer the call goes on."""
    assert stage.broker.asked == [(stage.call.request, "q", "1-0", 2.5)]
    assert not stage.call.done


async def test_a_call_that_never_began_has_the_error(stage: Stage) -> None:
    """A call that was removed from its queue certainly took no effect, so it ends with the error."""
    stage.broker.answers[0]("removed")
    error = await stage.error()
    assert (error.type, error.code) == ("deadline_exceeded", "not_taken")
    assert error.message == "too late: no worker took the call, so it did not run; no live worker serves 's' now"


@pytest.mark.parametrize("fate", ["signalled", "shared", "unknown"])
async def test_a_call_that_may_have_begun_is_unknown(stage: Stage, fate: Fate) -> None:
    """A call that a worker has, that others wait for, or of which the broker knows nothing may have taken effect."""
    stage.broker.answers[0](fate)
    error = await stage.error()
    assert (error.type, error.code) == ("outcome_unknown", "deadline_exceeded")


async def test_an_answer_on_its_way_is_waited_for(stage: Stage) -> None:
    """A call that is gone from its queue was answered: it does not end as unknown, and its answer is its result."""
    stage.broker.answers[0]("gone")
    assert not stage.call.done
    frame = run(1, response="done")[0]
    frame.id = stage.call.id
    stage.bus.on_frames([frame])
    assert (await stage.call.result()).output == "done"


@pytest.mark.parametrize("fate", [None, "gone"])
async def test_an_answer_is_waited_for_a_second(monkeypatch: pytest.MonkeyPatch, stage: Stage, fate: Fate | None) -> None:
    """Without an answer from the broker, or from the worker that answered, the call ends as unknown when the time is over."""
    monkeypatch.setattr(inquiry, "_INQUIRY", 0.01)
    stage.call.give_up(ERROR)
    if fate is not None:
        stage.broker.answers[-1](fate)
    assert not stage.call.done
    await eventually(lambda: stage.call.done)
    assert (await stage.error()).type == "outcome_unknown"


@pytest.mark.parametrize("frames", [0, 1, 2000])
async def test_a_call_whose_server_came_back_empty_says_so(stage: Stage, frames: int) -> None:
    """It ends without an answer, or as its first frame is missing, or as too many wait for that."""
    stage.bus.on_replies_lost()
    later = run(1, *"x" * (frames + 2))[1 : frames + 1]
    for frame in later:
        frame.id = stage.call.id
    stage.bus.on_frames(later)
    if frames == 1:
        missing = stage.call._assembled().missing
        assert missing is not None
        stage.call.look_for(missing)
    stage.broker.answers[0]("unknown")
    error = await stage.error()
    assert error.type == "outcome_unknown"
    assert error.message.count("what the server held for this caller is gone") == 1


async def test_a_call_that_did_not_run_is_not_told_to_have_taken_effect(stage: Stage) -> None:
    """The server that was asked still knew its request, and removed it."""
    stage.bus.on_replies_lost()
    stage.call.give_up(ERROR)
    stage.broker.answers[-1]("removed")
    error = await stage.error()
    assert error.code == "not_taken"
    assert "is gone" not in error.message
