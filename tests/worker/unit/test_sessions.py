"""A worker's sessions: what they leave behind, and their ends while the worker goes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.contract import KeptLists
from tests.servers import eventually
from tests.worker.unit.fakes import Bench
from toolbus import Retry, ToolError, ToolService, invocation, tool
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.worker.service import Session
from toolbus.bus.worker.sessions import OpenSessions, WorkerSessions
from toolbus.bus.worker.worker import NestedBus

pytestmark = pytest.mark.anyio


class Worker:
    """The part of a worker that sessions use."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(loop)
        self.clock = loop.time
        self.broker = SimpleNamespace(steps=SimpleNamespace(ownership=SimpleNamespace(release=lambda *which: None), snapshots=None))
        self.cleaned: list[Session | None] = []
        self.failure: Exception | None = None
        self.asked = 0

    async def cleanup(self, session: Session | None, state: object = None) -> None:
        """Take note."""
        self.cleaned.append(session)

    async def close_nested(self, user: str, session: str) -> None:
        """Fail as the test says."""
        self.asked += 1
        if self.failure is not None:
            raise self.failure

    def sessions(self, idle: float = 900.0, most: int = 1000, *, sticky: bool = False, lost: str = "error") -> OpenSessions:
        """The sessions of a service."""
        states = {"sticky": sticky, "opens_sessions": False, "restores_sessions": False, "session_lost": lost}
        served = SimpleNamespace(id="s", session_idle=idle, max_sessions=most, cleanup=self.cleanup, **states)
        return OpenSessions(cast("Any", served), cast("Any", self.broker), self.deadlines, self.clock, lease=0.1)


class Run:
    """A run that ends at once."""

    restarted = False

    def __init__(self, session: str) -> None:
        request = SimpleNamespace(id=session, agent="a", user="u", session=session, state="")
        self.delivery = SimpleNamespace(request=request, entry=b"1-0", attempt=1, is_held=True)

    async def execute(self) -> None:
        """Do nothing."""

    def stop(self, error: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize("how", ["closed", "left", "room"])
async def test_a_session_that_ended_leaves_nothing(how: str) -> None:
    """However it ended before it was idle, nothing waits for its time any more."""
    worker = Worker()
    sessions = worker.sessions(most=10 if how == "room" else 1000)
    for number in range(50):
        await sessions.start(cast("Any", Run(f"s{number}")))
        if how == "closed":
            sessions.end(Session("u", f"s{number}"), "closed", stop=True)
        await asyncio.sleep(0)
    if how == "left":
        sessions.left({"a"})
    left = 10 if how == "room" else 0
    await eventually(lambda: len(sessions) <= left)
    assert len(worker.deadlines) == len(sessions)
    worker.deadlines.close()


async def test_an_idle_session_ends_in_its_time() -> None:
    """One that begins anew after its end has a time of its own."""
    worker = Worker()
    sessions = worker.sessions(idle=0.05)
    for _ in range(2):
        await sessions.start(cast("Any", Run("s")))
        await eventually(lambda: len(sessions) == 0)
    assert worker.cleaned == [Session("u", "s")] * 2
    assert len(worker.deadlines) == 0


@pytest.mark.parametrize("failure", [ConfigurationError("the bus is not open"), ToolbusError("no")])
async def test_a_session_whose_nested_calls_can_not_be_told_is_logged(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """No task ends with an exception that nobody retrieves."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    worker = Worker()
    worker.failure = failure
    sessions = WorkerSessions(lambda served: worker.sessions(), lambda line, moved: None, worker.close_nested)
    sessions.closed("s", "u", "x")
    await eventually(lambda: "session.untold" in caplog.text)
    await sessions.aclose()
    assert unhandled == []


async def test_a_call_whose_session_is_closed_before_its_first_step_is_told_so() -> None:
    """Its turn and the close may come in one tick; to its caller the session was closed and not lost."""

    class Desk(ToolService):
        """Has sessions."""

        id = "desk"
        sticky_sessions = True

        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

    bench = Bench(Desk())
    for _ in range(2):
        bench.slots.start(bench.delivery("look", user="u", session="s"))
        bench.slots.sessions.closed("desk", "u", "s")
        await bench.settle()
    assert bench.broker.errors() == [("cancelled", "session_closed")] * 2
    bench.slots.start(bench.delivery("look", user="u", session="s"))
    await bench.settle()
    assert bench.broker.ends[-1].frame.response == "seen"


async def test_sessions_end_quietly_while_the_nested_bus_closes() -> None:
    """A session that ends during a drain has no nested calls any more."""

    class Bus:
        """A bus that closes when the test says."""

        def __init__(self) -> None:
            self.open_ = False
            self.go = asyncio.Event()

        async def open(self) -> None:
            self.open_ = True

        async def aclose(self) -> None:
            self.open_ = False
            await self.go.wait()

        async def end_session(self, user: str, session: str) -> None:
            if not self.open_:
                raise ConfigurationError("the bus is not open")

    made = Bus()
    bus = NestedBus(lambda: cast("Any", made))
    await bus.get()
    assert made.open_
    await bus.close_session("u", "s")
    closing = asyncio.create_task(bus.aclose())
    await eventually(lambda: not made.open_)
    await bus.close_session("u", "s")
    made.go.set()
    await closing


@pytest.mark.parametrize(
    ("held", "moved", "policy", "expected"),
    [
        (False, False, "error", [None]),
        (True, True, "error", ["session_lost"]),
        (True, True, "restart", ["ran anew"]),
        (True, False, "error", ["ran"]),
    ],
)
async def test_a_worker_that_was_paused_looks_whose_the_session_is(held: bool, moved: bool, policy: str, expected: list[Any]) -> None:
    """A call of a session that another worker has does not start; one whose state was out of date meanwhile does as its service says."""
    worker = Worker()
    sessions = worker.sessions(sticky=True, lost=policy)
    said: list[Any] = []
    moves = [True] if moved else []

    async def holds(delivery: Any) -> bool:
        if moves and moves.pop():
            sessions.end(Session("u", "s"), "moved")
        return held

    class Told(Run):
        """A run that takes note of its end."""

        async def execute(self) -> None:
            """Run."""
            said.append("ran anew" if self.restarted else "ran")

        def stop(self, error: Any) -> None:
            """End without running."""
            said.append(error and error.code)

    worker.broker.steps.ownership.holds = holds
    await sessions.start(cast("Any", Told("s")))
    assert said == expected
    sessions.end(Session("u", "s"), "closed")
    await eventually(lambda: len(sessions) == 0)
    worker.deadlines.close()


class Pages(KeptLists):
    """Keeps snapshots of what was written in its sessions."""

    id = "pages"

    @tool(retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def write(self, what: str) -> str:
        """Write, and then do as it says."""
        invocation().state.append(what)
        if what == "refused":
            raise ToolError("no")
        if what == "crash":
            raise ValueError("no")
        return what

    @tool(effect="read", sequential=False)
    async def read(self) -> str:
        """Read."""
        return " ".join(invocation().state)


class Kept:
    """The snapshots that a worker keeps, each with the call after which it was made; ``mine`` until another worker has the session."""

    def __init__(self, bench: Bench) -> None:
        self.saved: list[tuple[str, bytes]] = []
        self.forgotten = 0
        self.mine = True
        bench.broker.snapshots = cast("Any", self)

    async def save(self, delivery: Any, snapshot: Any) -> bool:
        """Keep a snapshot."""
        self.saved.append((snapshot.call, snapshot.document))
        return self.mine

    async def forget(self, delivery: Any) -> None:
        """Count."""
        self.forgotten += 1

    async def load(self, delivery: Any) -> None:
        """Say that there is none."""

    async def is_elsewhere(self, delivery: Any) -> bool:
        """Say that nobody else runs anything."""
        return False


@pytest.mark.parametrize(
    ("what", "runs", "saved"),
    [
        ("one", 1, [("", b"[]"), ("call-1", b'["one"]')]),
        ("refused", 1, [("", b"[]"), ("call-1", b'["refused"]')]),
        ("crash", 2, [("", b"[]"), ("", b'["crash"]'), ("call-1", b'["crash","crash"]')]),
    ],
)
async def test_a_session_is_kept_after_each_call_that_may_have_changed_it(what: str, runs: int, saved: list[Any]) -> None:
    """The snapshot names the call that is over, so that it is not run again on what it changed, and no call that is tried again."""
    bench = Bench(Pages())
    kept = Kept(bench)
    bench.slots.start(bench.delivery("write", {"what": what}, user="u", session="s"))
    await asyncio.sleep(3)
    [end] = [*bench.broker.ends, *bench.broker.buried]
    assert end.frame.state, "the state that answered has a token"
    assert kept.saved == saved
    assert len(bench.broker.retried) == runs - 1


async def test_what_only_reads_a_session_keeps_nothing() -> None:
    """A call that only reads makes no snapshot unless it keeps its place among calls that change the session."""
    bench = Bench(Pages())
    kept = Kept(bench)
    for number, ordered in enumerate((False, True)):
        bench.slots.start(bench.delivery("read", user="u", session="s", ordered=ordered))
        await asyncio.sleep(1)
        assert [call for call, _ in kept.saved] == ["", "call-2"][: number + 1]


async def test_a_call_whose_session_went_to_another_worker_says_so() -> None:
    """A call whose session moved before its snapshot fails with session_moved, since its changes are lost."""
    bench = Bench(Pages())
    kept = Kept(bench)
    bench.slots.start(bench.delivery("write", {"what": "one"}, user="u", session="s"))
    await asyncio.sleep(1)
    kept.mine = False
    bench.slots.start(bench.delivery("write", {"what": "two"}, user="u", session="s"))
    await asyncio.sleep(1)
    assert bench.broker.errors() == [("", ""), ("tool_error", "session_moved")]


@pytest.mark.parametrize("how", ["lose", "let_go"])
async def test_a_call_that_another_worker_has_when_its_session_begins_does_not_run(how: str) -> None:
    """The server says so when the first snapshot is kept, and no task ends with an exception that nobody retrieves."""
    ran: list[str] = []

    class Listed(Pages):
        """Says what ran."""

        id = "listed"

        @tool
        async def say(self) -> str:
            """Say so."""
            ran.append(invocation().id)
            return ""

    class Taken(Kept):
        """Another worker takes the call meanwhile."""

        async def save(self, delivery: Any, snapshot: Any) -> bool:
            """Let go of the call."""
            getattr(delivery.queue, how)(delivery)
            return False

    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    bench = Bench(Listed())
    Taken(bench)
    bench.slots.start(bench.delivery("say", user="u", session="s"))
    await asyncio.sleep(1)
    assert (ran, bench.broker.ends, unhandled, bench.slots.free) == ([], [], [], 2)


@pytest.mark.parametrize(("opens", "reason", "left"), [(True, "left", "lost"), (False, "left", "kept"), (False, "closed", "closed")])
async def test_a_session_that_did_not_begin_here_keeps_what_another_worker_left(opens: bool, reason: str, left: str) -> None:
    """Its snapshot goes when its caller closes it, and whoever has it next is told of a loss only where there was something to lose."""

    class Refusing(Pages):
        """Refuses sessions."""

        id = "refusing"

        def open_session(self, session: Session) -> list[str]:  # type: ignore[override]
            if not opens:
                raise ToolError("not now")
            return super().open_session(session)

    bench = Bench(Refusing())
    Kept(bench)
    bench.slots.start(bench.delivery("write", {"what": "one"}, user="u", session="s"))
    await asyncio.sleep(1)
    bench.slots.sessions.services["refusing"].end(Session("u", "s"), reason)
    await asyncio.sleep(1)
    assert bench.broker.released == [left]


async def test_a_call_that_was_stopped_leaves_no_snapshot(gate: asyncio.Event) -> None:
    """When a call is stopped, the session's snapshot is forgotten, since the handler may have changed the state."""

    class Slow(Pages):
        """Takes its time."""

        id = "slow"

        @tool
        async def wait(self) -> str:
            """Wait for the gate."""
            await gate.wait()
            return ""

    bench = Bench(Slow())
    kept = Kept(bench)
    bench.slots.start(delivery := bench.delivery("wait", user="u", session="s"))
    await asyncio.sleep(1)
    bench.slots.on_cancelled(delivery.request.id)
    await asyncio.sleep(1)
    [end] = bench.broker.ends
    assert (len(kept.saved), end.forgets, bench.broker.errors()) == (1, True, [("cancelled", "")])
