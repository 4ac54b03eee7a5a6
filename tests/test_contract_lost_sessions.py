"""Sessions that lose their state, over every transport: made, lost, told, restored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.client.executing import chat
from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, Session, ToolBus, ToolResult, ToolService, Worker, invocation, tool
from toolbus.testing import InvocationEnvironment

pytestmark = pytest.mark.anyio


class Basket(ToolService):
    """A state for each session: what is in a basket."""

    id = "basket"

    def __init__(self, **settings: Any) -> None:
        self.opened: list[tuple[Session, dict[str, Any]]] = []
        self.cleaned: list[tuple[Session | None, Any]] = []
        self.failing = 0
        self.go = asyncio.Event()
        self.go.set()
        for name, value in settings.items():
            setattr(self, name, value)

    async def open_session(self, session: Session, initial: dict[str, Any]) -> list[str]:
        """Begin with what the caller has."""
        self.opened.append((session, initial))
        await asyncio.sleep(0.01)
        if self.failing:
            self.failing -= 1
            raise RuntimeError("no basket")
        return list(initial.get("has", []))

    @tool(effect="idempotent")
    async def put(self, what: str) -> str:
        """Put something in."""
        state = invocation().state
        await self.go.wait()
        state.append(what)
        return " ".join(state)

    @tool(effect="read", sequential=False)
    async def look(self) -> str:
        """Say what is there."""
        return " ".join(invocation().state)

    async def cleanup(self, session: Session | None = None, state: Any = None) -> None:
        """Remember what was in it."""
        self.cleaned.append((session, state))


class SavedBasket(Basket):
    """A basket that outlives its worker."""

    session_lost = "restore"
    unsavable = False

    async def save_session(self, session: Session, state: list[str]) -> Any:
        """Write down what is in it."""
        if self.unsavable:
            raise RuntimeError("no paper")
        return {"has": state}

    def load_session(self, session: Session, saved: Any) -> list[str]:
        """Fill a basket."""
        return list(saved["has"])


def told(result: ToolResult) -> str:
    """The code of a failure, or the output."""
    return str(result.output) if result.error is None else result.error.code


@asynccontextmanager
async def replaced(place: Place, worker: Worker, service: ToolService) -> AsyncIterator[None]:
    """Start another worker, and let the first one leave."""
    async with place.worker(service):
        await worker.drain()
        yield


async def test_a_state_is_made_once_of_what_the_caller_says(place: Place) -> None:
    """Calls that come together make one state; each session has its own; the clean-up is given it."""
    service = Basket()
    async with place.serving(service) as bus:
        await bus.wait_for_tool("put")
        assert bus.services["basket"].publication.service.sticky_sessions
        async with bus.session("s", user="ann", initial={"has": ["apple"]}) as view:
            results = await asyncio.gather(*(view.call("put", {"what": f"{number}"}) for number in range(3)), view.call("look"))
            assert told(results[2]) == "apple 0 1 2"
            assert (await bus.call("look", session="t")).output == ""
        await eventually(lambda: service.cleaned)
    assert sorted(service.opened) == [(Session("", "t"), {}), (Session("ann", "s"), {"has": ["apple"]})]
    assert service.cleaned[0] == (Session("ann", "s"), ["apple", "0", "1", "2"])


async def test_a_state_that_can_not_be_made_fails_the_call_alone(place: Place) -> None:
    """The failure is the service's own, and the next call tries again."""
    service = Basket(failing=2)
    async with place.serving(service) as bus:
        await bus.wait_for_tool("put")
        view = bus.bind(session="s")
        assert [told(await view.call("put", {"what": "a"})) for _ in range(3)] == ["RuntimeError", "RuntimeError", "a"]


async def test_each_agent_is_told_once_that_a_state_was_lost(place: Place) -> None:
    """Its next call fails without being run, with a next step for the model; the one after that begins anew."""
    first, second = Basket(), Basket()
    worker = place.worker(first)
    async with worker, place.bus() as bus, place.bus() as other:
        for each in (bus, other):
            await each.wait_for_tool("put")
            await each.call("put", {"what": "a"}, session="s")
        async with replaced(place, worker, second):
            said = [told(await bus.call("put", {"what": "b"}, session="s", initial={"has": ["z"]})) for _ in range(3)]
            assert said == ["session_lost", "z b", "z b b"]
            message = (await other.executor(session="s").process_tool_calls([chat("c", "put", {"what": "c"})]))[0]["content"]
            assert "'s' was lost" in message
            assert "repeat the earlier steps" in message
            assert told(await other.call("put", {"what": "c"}, session="s")) == "z b b c"
            assert told(await bus.call("put", {"what": "d"}, session="new")) == "d"
    assert second.opened == [(Session("", "s"), {"has": ["z"]}), (Session("", "new"), {})]


async def test_calls_that_were_published_before_the_loss_was_told_do_not_run(place: Place) -> None:
    """Neither those of one turn that wait at the worker, nor those that the executor holds back."""
    first, second = Basket(), Basket()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("put")
        await bus.call("put", {"what": "a"}, session="s")
        async with replaced(place, worker, second):
            calls = [chat(f"c{number}", "put", {"what": f"{number}"}) for number in range(4)]
            made = await bus.executor(session="s").process_tool_calls(calls)
            assert ["was lost" in each["content"] for each in made] == [True] * 4
            made = await bus.executor(session="s", sequential=["put"]).process_tool_calls(calls)
            assert [each["content"] for each in made] == ["0", "0 1", "0 1 2", "0 1 2 3"]
            await bus.bind(session="s").close_session()
    assert len(second.opened) == 1


async def test_a_sequential_turn_stops_where_the_state_is_lost(place: Place) -> None:
    """Calls that are published one after another's end are not run either when an earlier one of their turn was told."""
    first, second = Basket(), Basket()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("put")
        executor = bus.executor(session="s", sequential=["put"])
        await executor.execute("put", {"what": "a"})
        async with replaced(place, worker, second):
            made = await executor.process_tool_calls([chat(f"c{number}", "put", {"what": f"{number}"}) for number in range(3)])
            assert ["was lost" in each["content"] for each in made] == [True] * 3
            assert str(await executor.execute("put", {"what": "b"})) == "b"


async def test_a_service_may_restart_sessions(place: Place) -> None:
    """The call runs on a new state, and its result says so; later ones do not."""
    worker = place.worker(Basket(session_lost="restart"))
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("put")
        view = bus.bind(session="s", initial={"has": ["x"]})
        assert not (await view.call("put", {"what": "a"})).meta.restarted
        async with replaced(place, worker, Basket(session_lost="restart")):
            results = [await view.call("put", {"what": "b"}) for _ in range(2)]
            assert [(told(result), result.meta.restarted) for result in results] == [("x b", True), ("x b b", False)]
            async with view.stream("put", {"what": "c"}) as call:
                assert not (await call.result()).meta.restarted


async def test_a_service_may_restore_sessions(place: Place) -> None:
    """A session goes on at another worker from where it was, and no agent notices; a closed one begins anew."""
    worker = place.worker(SavedBasket())
    second = SavedBasket()
    async with worker, place.bus() as bus, place.bus() as other:
        await bus.wait_for_tool("put")
        await other.wait_for_tool("put")
        view = bus.bind(session="s")
        await asyncio.gather(*(view.call("put", {"what": f"{number}"}) for number in range(5)))
        async with replaced(place, worker, second):
            results = [await view.call("put", {"what": "b"}), await other.call("put", {"what": "c"}, session="s")]
            assert [(told(result), result.meta.restarted) for result in results] == [("0 1 2 3 4 b", False), ("0 1 2 3 4 b c", False)]
            assert second.opened == []
            await view.close_session()
            await eventually(lambda: second.cleaned)
            assert told(await view.call("put", {"what": "d"})) == "d"


async def test_without_a_snapshot_the_loss_is_told(place: Place) -> None:
    """A snapshot that could not be made is none: a state that is out of date is never restored."""
    first = SavedBasket()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("put")
        view = bus.bind(session="s")
        assert told(await view.call("put", {"what": "a"})) == "a"
        first.unsavable = True
        assert told(await view.call("put", {"what": "b"})) == "a b"
        async with replaced(place, worker, SavedBasket()):
            assert [told(await view.call("put", {"what": "c"})) for _ in range(2)] == ["session_lost", "c"]


async def test_a_session_that_was_idle_is_lost_and_not_silently_new(place: Place) -> None:
    """Also at the same worker; a new agent that can't know of it is told too, since it may go on with another's session."""
    service = Basket(session_idle=0.3)
    async with place.serving(service) as bus, place.bus() as other:
        await bus.wait_for_tool("put")
        await other.wait_for_tool("put")
        await bus.call("put", {"what": "a"}, session="s")
        await eventually(lambda: service.cleaned)
        assert told(await other.call("put", {"what": "b"}, session="s")) == "session_lost"
        assert told(await other.call("put", {"what": "b"}, session="s")) == "b"
        assert told(await bus.call("put", {"what": "c"}, session="s")) == "session_lost"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("policy", ["error", "restart", "restore"])
async def test_whoever_speaks_next_in_a_session_finds_its_state_or_is_told(place: Place, policy: str) -> None:
    """A state is there within two leases; later it is restored, or lost, which is said once, to whoever comes next."""
    service = SavedBasket(session_lost=policy)
    place.settings = msgspec.structs.replace(place.settings, lease=0.7)
    said = []
    async with place.worker(service):
        for number in range(5):
            async with place.bus() as bus:
                await bus.wait_for_tool("put")
                result = await bus.call("put", {"what": f"{number}"}, user="ann", session="s")
                said.append((told(result), result.meta.restarted))
            if number:
                await eventually(lambda number=number: len(service.cleaned) >= number)
    assert said[:2] == [("0", False), ("0 1", False)]
    assert (
        said[2:]
        == {
            "error": [("session_lost", False), ("3", False), ("session_lost", False)],
            "restart": [("2", True), ("3", True), ("4", True)],
            "restore": [("0 1 2", False), ("0 1 2 3", False), ("0 1 2 3 4", False)],
        }[policy]
    )


async def test_closed_sessions_begin_anew_without_a_word(place: Place) -> None:
    """An end that the caller asked for is no loss to it; another agent that still used the session is told."""
    async with place.serving(Basket()) as bus, place.bus() as other:
        await bus.wait_for_tool("put")
        await other.wait_for_tool("put")
        await other.call("put", {"what": "a"}, session="s")
        async with bus.session("s") as view:
            assert told(await view.call("put", {"what": "b"})) == "a b"
        async with bus.session("s") as view:
            assert told(await view.call("put", {"what": "c"})) == "c"
            assert told(await other.call("put", {"what": "d"}, session="s")) == "session_lost"


async def test_sticky_services_of_before_restart_and_say_so(place: Place) -> None:
    """A service that says nothing of lost sessions begins anew, and results say so."""

    class Counter(ToolService):
        """Counts in each session."""

        id = "counter"
        sticky_sessions = True

        def __init__(self) -> None:
            self.counts: dict[str, int] = {}

        @tool(effect="read")
        async def count(self) -> str:
            """Count."""
            self.counts[invocation().session] = self.counts.get(invocation().session, 0) + 1
            return str(self.counts[invocation().session])

    worker = place.worker(Counter())
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("count")
        results = [await bus.call("count", session="s")]
        async with replaced(place, worker, Counter()):
            results += [await bus.call("count", session="s"), await bus.call("count", session="s")]
    assert [(told(result), result.meta.restarted) for result in results] == [("1", False), ("1", True), ("2", False)]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"session_lost": "forget"}, "session_lost"),
        ({"session_lost": "error"}, "sticky_sessions"),
        ({"session_lost": "restore", "sticky_sessions": True}, "save_session"),
    ],
)
def test_wrong_policies_are_refused(attributes: dict[str, Any], expected: str) -> None:
    """A policy that does not exist, or that the service can't follow, is refused at the start."""
    service = type("Wrong", (ToolService,), {"id": "wrong", "invoke": lambda self, config, arguments: "x", **attributes})
    with pytest.raises(ConfigurationError, match=expected):
        Worker([service], url="memory://")


@pytest.mark.parametrize("initial", [["a"], {"a": object()}, {"a": "x" * 70_000}])
async def test_a_wrong_initial_value_is_refused(initial: Any) -> None:
    """It is a JSON object within a bound."""
    bus = ToolBus("memory://")
    with pytest.raises(ConfigurationError, match="initial"):
        bus.bind(session="s", initial=initial)


@pytest.mark.parametrize("policy", ["error", "restart"])
async def test_a_session_that_is_closed_after_its_loss_begins_anew_without_a_word(place: Place, policy: str) -> None:
    """A new session is what was asked for, whether or not the old one was gone; a loss after that is told again."""
    services = [Basket(session_lost=policy) for _ in range(3)]
    worker, second = place.worker(services[0]), place.worker(services[1])
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("put")
        view = bus.bind(session="s")
        assert told(await view.call("put", {"what": "a"})) == "a"
        async with second:
            await worker.drain()
            await view.close_session()
            results = await asyncio.gather(*(view.call("put", {"what": f"{number}"}) for number in range(3)))
            assert [told(result) for result in results] == ["0", "0 1", "0 1 2"]
            assert not any(result.meta.restarted for result in results)
            async with replaced(place, second, services[2]):
                result = await view.call("put", {"what": "b"})
                assert (told(result), result.meta.restarted) == (("session_lost", False) if policy == "error" else ("b", True))


async def test_a_state_without_a_session_is_a_clear_error(place: Place) -> None:
    """A call that names neither session nor user has no state: the error says what to do, and tools that need no state run."""

    class Helped(Basket):
        """A basket with a tool that needs no state."""

        @tool(effect="read")
        async def help(self) -> str:
            """Say what this is."""
            return "a basket"

    async with place.serving(Helped()) as bus:
        await bus.wait_for_tool("put")
        error = (await bus.call("put", {"what": "a"})).error
        assert error is not None
        assert (error.type, error.code) == ("invalid_arguments", "no_session")
        assert "call it in one, with bus.session() or bus.bind(session=…)" in error.message
        assert (await bus.call("help")).output == "a basket"
        assert told(await bus.call("put", {"what": "a"}, user="ann")) == "a"
    async with InvocationEnvironment() as environment:
        error = (await environment.call(Helped(), {"what": "a"}, tool="put")).error
        assert error is not None
        assert error.code == "no_session"
