"""Sessions: who hears of their end, and where their calls run, over every transport."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from tests.contract import Place
from tests.notebook import Notes, Plain, StickyNotes
from tests.servers import eventually
from toolbus import ConfigurationError, Session, Settings, ToolService, invocation, tool
from toolbus.sync import ToolBus as SyncBus

pytestmark = pytest.mark.anyio


# -- ends ---------------------------------------------------------------------------------------------


async def test_closing_a_session_cleans_up_after_it_alone(place: Place) -> None:
    """The service hears which session of which user is over, once; others stay, those of another user with the same id too."""
    notes = Notes()
    async with place.serving(notes) as bus:
        for user, session in (("ann", "s1"), ("bob", "s1"), ("ann", "s2")):
            assert (await bus.call("note", {"text": "x"}, user=user, session=session)).output == "one 1"
        await bus.bind(user="ann", session="s1").close_session()
        await eventually(lambda: notes.cleaned)
        assert notes.cleaned == [Session("ann", "s1")]
        assert list(notes.notes) == [("bob", "s1"), ("ann", "s2")]
        assert (await bus.call("note", {"text": "x"}, user="bob", session="s1")).output == "one 2"
        # Used again, it starts anew.
        assert (await bus.call("note", {"text": "x"}, user="ann", session="s1")).output == "one 1"
        assert notes.new == [True, True, True, False, True]
    assert notes.cleaned[-1] is None
    assert Counter(notes.cleaned) == {Session("ann", "s1"): 2, Session("bob", "s1"): 1, Session("ann", "s2"): 1, None: 1}


async def test_leaving_the_context_closes_the_session(place: Place) -> None:
    """`async with bus.session(…)` is a bound view whose session ends with it, for every service that was called in it."""
    notes, others = Notes(), Notes()
    others.id = "others"  # type: ignore[misc] # an instance of its own id
    async with place.serving(notes) as bus:
        async with bus.session("s1", user="ann") as view:
            assert (await view.call("note", {"text": "x"})).output == "one 1"
            assert notes.cleaned == []
        await eventually(lambda: notes.cleaned == [Session("ann", "s1")])
        with pytest.raises(ConfigurationError, match="no session is bound"):
            await bus.close_session()


async def test_a_synchronous_caller_closes_sessions_too(place: Place) -> None:
    """`with bus.session(…)` of the synchronous bus does the same."""
    notes = Notes()

    def call() -> str | None:
        with SyncBus(settings=place.settings) as bus:
            bus.wait_for_tool("note")
            with bus.session("s1", user="ann") as view:
                return view.call("note", {"text": "x"}).output

    async with place.worker(notes):
        assert await asyncio.to_thread(call) == "one 1"
        await eventually(lambda: notes.cleaned == [Session("ann", "s1")])


@pytest.mark.usefixtures("slow")
async def test_a_session_ends_after_the_last_bus_that_used_it(place: Place) -> None:
    """Two leases after a bus was closed, the sessions end that only it used; those that another bus uses go on."""
    notes = Notes()
    async with place.worker(notes):
        async with place.bus() as stays:
            await stays.wait_for_tool("note")
            async with place.bus() as leaves:
                for session in ("own", "shared", "taken"):
                    await leaves.call("note", {"text": "x"}, session=session)
                await stays.call("note", {"text": "x"}, session="shared")
            left = time.monotonic()
            # Whoever speaks next for a session that everybody left goes on with it.
            assert (await stays.call("note", {"text": "x"}, session="taken")).output == "one 2"
            await eventually(lambda: notes.cleaned == [Session("", "own")])
            assert time.monotonic() - left >= 2 * place.settings.lease
            assert (await stays.call("note", {"text": "x"}, session="shared")).output == "one 3"
        await eventually(lambda: len(notes.cleaned) == 3)
    assert set(notes.cleaned[:3]) == {Session("", "own"), Session("", "shared"), Session("", "taken")}


async def test_calls_of_a_closed_session_are_cancelled(place: Place) -> None:
    """The closer's own calls and those of other buses end as cancelled, and only then the service cleans up."""
    notes = Notes()
    async with place.serving(notes) as bus, place.bus() as other:
        view = bus.bind(user="ann", session="s1")
        await view.call("note", {"text": "x"})
        calls = [asyncio.create_task(each.call("wait", user="ann", session="s1")) for each in (bus, other)]
        await eventually(lambda: notes.running == 2)
        await view.close_session()
        errors = [(await call).error for call in calls]
        assert [error and (error.type, error.code) for error in errors] == [("cancelled", "session_closed")] * 2
        await eventually(lambda: notes.cleaned)
        assert notes.running == 0


class Paying(ToolService):
    """Has sessions, and work in them that must not happen twice."""

    id = "paying"
    sticky_sessions = True

    def __init__(self) -> None:
        self.ran: list[str] = []

    @tool(effect="once")
    async def pay(self, whom: str) -> str:
        """Begin, and not end."""
        self.ran.append(whom)
        await asyncio.Event().wait()
        return whom

    @tool(effect="read", sequential=False)
    async def look(self, wait: bool) -> str:
        """Begin, and maybe not end."""
        if wait:
            self.ran.append("look")
            await asyncio.Event().wait()
        return ""

    async def cleanup(self, session: Session | None = None) -> None:
        """Do nothing."""


async def test_the_outcome_of_once_work_is_unknown_when_its_session_is_closed(place: Place) -> None:
    """A call of another bus may have taken effect, as its key keeps; one that only reads is cancelled."""
    paying = Paying()
    async with place.serving(paying) as bus, place.bus() as other:
        # Only services that it called are told when it closes the session.
        assert (await other.call("look", {"wait": False}, session="s", wait=5)).success
        runs = asyncio.create_task(bus.call("pay", {"whom": "a"}, session="s", idempotency_key="k", timeout=15))
        await eventually(lambda: paying.ran == ["a"])
        look = asyncio.create_task(bus.call("look", {"wait": True}, session="s", timeout=15))
        await eventually(lambda: "look" in paying.ran)
        await other.bind(session="s").close_session()
        errors = [(await each).error for each in (runs, look)]
        again = (await bus.call("pay", {"whom": "a"}, session="s", idempotency_key="k", timeout=15)).error
        assert [error and (error.type, error.code) for error in (*errors, again)] == [
            ("outcome_unknown", "session_closed"),
            ("cancelled", "session_closed"),
            ("outcome_unknown", "session_closed"),
        ]
        assert again is not None
        assert "it may or may not have taken effect" in again.message
        assert paying.ran == ["a", "look"]


async def test_a_call_during_the_clean_up_waits_for_it(place: Place) -> None:
    """It runs in a session that starts anew, not in the one that is being cleaned up."""
    notes = Notes()
    notes.slow.add("s1")
    async with place.serving(notes) as bus:
        view = bus.bind(session="s1")
        await view.call("note", {"text": "x"})
        await view.close_session()
        again = asyncio.create_task(view.call("note", {"text": "y"}))
        assert (await bus.call("note", {"text": "x"}, session="s2")).output == "one 1"
        assert not again.done()
        notes.go.set()
        assert (await again).output == "one 1"
        assert notes.cleaned == [Session("", "s1")]


async def test_a_session_that_is_closed_again_during_the_clean_up_takes_what_waited_with_it(place: Place) -> None:
    """Calls that waited to begin it anew are cancelled, those of other buses too, and nothing of it stays open."""
    notes = Notes()
    notes.slow.add("s1")
    async with place.worker(notes) as worker, place.bus() as bus, place.bus() as other:
        await bus.wait_for_tool("note")
        await other.wait_for_tool("note")
        view = bus.bind(session="s1")
        await view.call("note", {"text": "x"})
        await view.close_session()
        waits = asyncio.create_task(other.call("note", {"text": "y"}, session="s1"))
        await eventually(lambda: worker.statistics()["running"] == 1)
        mine = asyncio.create_task(view.call("note", {"text": "y"}))
        await eventually(lambda: worker.statistics()["running"] == 2)
        await view.close_session()
        for call in (waits, mine):
            error = (await call).error
            assert error is not None
            assert error.code == "session_closed"
        notes.go.set()
        await eventually(lambda: worker.statistics()["sessions"] == 0)
        assert notes.cleaned == [Session("", "s1")]


async def test_idle_sessions_end(place: Place) -> None:
    """A session that nobody uses for its idle limit is cleaned up; one in which a call runs is not idle."""
    notes = Notes()
    notes.session_idle = 0.3
    async with place.serving(notes) as bus:
        running = asyncio.create_task(bus.call("wait", session="busy"))
        await eventually(lambda: notes.running == 1)
        notes.notes["", "busy"] = []
        called = time.monotonic()
        await bus.call("note", {"text": "x"}, session="idle")
        await eventually(lambda: notes.cleaned == [Session("", "idle")])
        assert time.monotonic() - called > 0.3
        await eventually(lambda: time.monotonic() - called > 0.7)
        assert notes.cleaned == [Session("", "idle")]
        notes.go.set()
        assert (await running).success
        await eventually(lambda: Session("", "busy") in notes.cleaned)


async def test_a_drain_ends_every_session_and_failures_stop_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """All open sessions are cleaned up before the last clean-up; each that fails is logged, and the others' are not affected."""
    notes, plain = Notes(), Plain()
    notes.failing = {"s1", "s3"}
    with caplog.at_level(logging.ERROR, logger="toolbus"):
        async with place.serving(notes, plain) as bus:
            for number in range(5):
                await bus.call("note", {"text": "x"}, session=f"s{number}", user="ann")
            assert (await bus.call("ping", session="s1")).output == "False"
    assert notes.cleaned[-1] is None
    assert sorted(each for each in notes.cleaned if each) == [Session("ann", f"s{number}") for number in range(5)]
    assert notes.notes == {}
    assert plain.cleanups == 1
    failures = [record.toolbus for record in caplog.records if record.toolbus["event"] == "session.cleanup_failed"]  # type: ignore[attr-defined]
    assert sorted(failure["session"] for failure in failures) == ["s1", "s3"]


async def test_a_clean_up_that_hangs_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After its time it is cancelled and logged, and the session can be used anew."""
    monkeypatch.setattr("toolbus.bus.worker.sessions.CLEANUP_WITHIN", 0.2)
    notes = Notes()
    notes.slow.add("s1")
    with caplog.at_level(logging.ERROR, logger="toolbus"):
        async with place.serving(notes) as bus:
            view = bus.bind(session="s1")
            await view.call("note", {"text": "x"})
            await view.close_session()
            assert (await view.call("note", {"text": "x"})).output == "one 2"
            notes.slow.clear()
    assert [record.toolbus["session"] for record in caplog.records if record.toolbus["event"] == "session.cleanup_failed"] == ["s1"]  # type: ignore[attr-defined]


async def test_a_worker_has_a_bounded_number_of_sessions(place: Place) -> None:
    """Beyond it the session that was not used for the longest ends, never one in which a call runs."""
    notes = Notes()
    notes.max_sessions = 3
    async with place.serving(notes) as bus:
        running = asyncio.create_task(bus.call("wait", session="busy"))
        await eventually(lambda: notes.running == 1)
        for session in ("s1", "s2", "s1", "s3"):
            await bus.call("note", {"text": "x"}, session=session)
        await eventually(lambda: notes.cleaned == [Session("", "s2")])
        notes.go.set()
        notes.notes["", "busy"] = []
        assert (await running).success


async def test_a_plain_clean_up_runs_in_a_thread(place: Place) -> None:
    """A cleanup that is no coroutine function may block: calls go on meanwhile."""

    class Blocking(ToolService):
        """Cleans up slowly."""

        id = "blocking"
        done = 0
        go = threading.Event()

        @tool(effect="read")
        async def ping(self) -> str:
            """Answer."""
            return "pong"

        def cleanup(self, session: Session | None = None) -> None:  # type: ignore[override]
            """Block until the test says so."""
            assert self.go.wait(10)
            self.done += 1

    service = Blocking()
    async with place.serving(service) as bus:
        async with bus.session("s1") as view:
            await view.call("ping")
        for _ in range(3):
            assert (await bus.call("ping")).success
        assert service.done == 0
        service.go.set()
        await eventually(lambda: service.done == 1)
    assert service.done == 2


async def test_nested_sessions_end_with_the_one_that_was_closed(place: Place) -> None:
    """A service that was called by a handler hears of the end too, although the agent never called it."""
    notes = Notes()

    @tool(service="outer-of-sessions", effect="read")
    async def pass_on() -> str | None:
        """Take a note elsewhere."""
        return (await invocation().call("note", {"text": "x"})).output

    async with place.worker(notes), place.serving(pass_on) as bus:
        await bus.wait_for_tool("note")
        async with bus.session("s1", user="ann") as view:
            assert (await view.call("pass_on")).output == "one 1"
        await eventually(lambda: notes.cleaned == [Session("ann", "s1")])


def test_wrong_limits_are_named() -> None:
    """A service whose limits can't be is refused with the name of the limit."""
    notes = Notes()
    notes.session_idle = 0
    with pytest.raises(ConfigurationError, match=r"Notes.*: session_idle must be a number of seconds above 0, not 0"):
        Place("memory://", "limits").worker(notes)


async def test_no_key_stays_of_ended_sessions(place: Place) -> None:
    """Owners are removed as sessions are closed, and those of lost ones after a time; consumers go with the workers."""
    settings: Settings = place.settings
    client = redis.Redis.from_url(settings.url)
    prefix = f"tb:{{{settings.namespace}}}:"
    async with place.worker(StickyNotes()), place.serving(StickyNotes("two")) as bus:
        for number in range(10):
            await bus.call("note", {"text": "x"}, session=f"s{number}")
        assert len(list(client.scan_iter(f"{prefix}sess:*"))) == 10
        for number in range(5):
            await bus.bind(session=f"s{number}").close_session()
        await eventually(lambda: len(list(client.scan_iter(f"{prefix}sess:*"))) == 5)
    lost = list(client.scan_iter(f"{prefix}sess:*"))
    assert [client.get(key) for key in lost] == [b"~"] * 5
    assert all(0 < client.ttl(key) <= 3600 for key in lost)
    assert not client.exists(f"{prefix}q:notes", f"{prefix}fence:notes")
    client.close()


class Till:
    """A toolkit that knows nothing of toolbus."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, cents: int) -> int:
        """Put money in."""
        self.paid.append(cents)
        return sum(self.paid)

    async def refund(self) -> int:
        """Take the last money out."""
        return self.paid.pop()

    def listed(self) -> Iterator[str]:
        """List what was paid."""
        yield from (f"{cents} " for cents in self.paid)


def count(till: Till, *, above: int = 0) -> int:
    """Count payments."""
    return sum(cents > above for cents in till.paid)


async def test_a_toolkits_methods_and_functions_work_on_the_state(place: Place) -> None:
    """Each session has an object of its own, and no schema shows the parameter that it takes."""

    class Tills(ToolService):
        """A till for each session."""

        id = "tills"

        def open_session(self, session: Session, initial: dict[str, object]) -> Till:
            """Make a till."""
            return Till()

    for function in (Till.pay, Till.refund, Till.listed, count):
        setattr(Tills, function.__name__, tool(effect="idempotent", state=True)(function))
    async with place.serving(Tills()) as bus:
        await bus.wait_for_tool("pay")
        shown = {name: list(bus.tools[name].parameters["properties"]) for name in ("pay", "refund", "listed", "count")}
        assert shown == {"pay": ["cents"], "refund": [], "listed": [], "count": ["above"]}
        ann, bob = bus.bind(user="ann", session="s"), bus.bind(user="bob", session="s")
        assert [(await each.call("pay", {"cents": cents})).output for each, cents in ((ann, 3), (bob, 5), (ann, 4))] == ["3", "5", "7"]
        assert [(await ann.call(name)).output for name in ("listed", "count", "refund", "count")] == ["3 4 ", "2", "4", "1"]
        assert str((await ann.call("pay", {"cents": 1, "self": 2})).error).startswith("invalid_arguments")
        error = (await bus.call("count")).error
        assert error is not None
        assert (error.type, error.code) == ("invalid_arguments", "no_session")


def test_a_state_that_nobody_makes_is_refused() -> None:
    """Neither a service without ``open_session`` nor the functions of a module have one, nor has a child process."""

    class Stateless(ToolService):
        """Has no state."""

        id = "stateless"

    made = tool(effect="read", state=True)(count)
    Stateless.count = made  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"'count' wants the state of a session .*, which Stateless\.open_session makes"):
        Place("memory://", "states").worker(Stateless())
    with pytest.raises(ConfigurationError, match="set it as an attribute of a ToolService"):
        Place("memory://", "states").worker(made)
    with pytest.raises(ConfigurationError, match="no state of a session"):
        tool(state=True, isolation="process")(count)
