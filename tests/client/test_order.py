"""The order of a model's calls, in every way in which a turn is made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.executing import chat
from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ToolService, tool
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.toolcalls import CallOrder, ModelCall

pytestmark = pytest.mark.anyio


class Ledger(ToolService):
    """Notes which of its calls run, and which run beside others."""

    id = "ledger"
    effect = "read"
    sequential = True

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running: set[str] = set()
        self.together: list[set[str]] = []
        self.free = asyncio.Event()
        self.free.set()

    async def _note(self, text: str) -> str:
        self.began.append(text)
        self.running.add(text)
        self.together.append(set(self.running))
        await asyncio.sleep(0.005)
        await self.free.wait()
        self.running.discard(text)
        return text

    @tool
    async def write(self, text: str) -> str:
        """Write."""
        return await self._note(text)

    @tool(sequential=False)
    async def look(self, text: str) -> str:
        """Look."""
        return await self._note(text)


async def by_itself(executor: ToolExecutor, call: str, name: str, text: str) -> str:
    """Run one call in a turn of its own, as adapters do."""
    async with executor.turn([ModelCall(call, name, {"text": text})]) as turn:
        [message] = await turn.messages()
    return str(message["content"])


async def test_sequential_is_declared_and_published(place: Place) -> None:
    """A service's ``sequential`` is in the descriptors of its tools, and a tool's own goes first."""
    async with place.serving(Ledger()) as bus:
        assert {name: bus.tools[name].descriptor.sequential for name in ("write", "look")} == {"write": True, "look": False}
        assert bus.executor().is_sequential(bus.tools["write"])
        assert not bus.executor().is_sequential(bus.tools["look"])


@pytest.mark.parametrize("value", ["yes", 1])
def test_sequential_is_yes_or_no(value: Any) -> None:
    """Another value is refused where it is said."""
    with pytest.raises(ConfigurationError, match="sequential"):
        tool(sequential=value)(lambda: None)


async def test_calls_in_turns_of_their_own_keep_the_order(place: Place) -> None:
    """A framework that runs each call of a turn by itself gets the same order as one turn: one order for each executor and service."""
    ledger = Ledger()
    async with place.serving(ledger) as bus:
        executor = bus.executor()
        asked = [("look", "a"), ("look", "b"), ("write", "c"), ("write", "d"), ("look", "e"), ("look", "f")]
        made = await asyncio.gather(*(by_itself(executor, f"c{i}", name, text) for i, (name, text) in enumerate(asked)))
    assert made == list("abcdef")
    assert [ledger.began[2], ledger.began[3]] == ["c", "d"]
    assert sorted(ledger.began[:2]) == ["a", "b"]
    assert [running for running in ledger.together if running & {"c", "d"}] == [{"c"}, {"d"}]
    assert len(executor._calls) == 0


async def test_executors_of_one_session_have_one_order(place: Place) -> None:
    """With a session, also turns that are made without a common executor are in order; without one each is by itself."""
    ledger = Ledger()
    async with place.serving(ledger) as bus:
        view = bus.bind(session="s")
        await asyncio.gather(*(view.process_tool_calls([chat(f"c{i}", "write", {"text": f"{i}"})]) for i in range(8)))
        assert ledger.began == [f"{i}" for i in range(8)]
        assert max(map(len, ledger.together)) == 1


async def test_executors_of_one_user_share_the_order_of_a_state(place: Place) -> None:
    """Without a session a sticky service has one state for all calls of a user, so their sequential calls have one order."""
    ledger = Ledger()
    ledger.sticky_sessions = True
    async with place.serving(ledger) as bus:
        view = bus.bind(user="ann")
        await asyncio.gather(*(view.process_tool_calls([chat(f"c{i}", "write", {"text": f"{i}"})]) for i in range(8)))
        assert ledger.began == [f"{i}" for i in range(8)]
        assert max(map(len, ledger.together)) == 1
        assert not bus._state._orders


async def test_executors_without_a_session_do_not_wait_for_each_other(place: Place) -> None:
    """Without a state that they share, two executors are two conversations, also those of one user."""
    ledger = Ledger()
    async with place.serving(ledger) as bus:
        ledger.free.clear()
        calls = [asyncio.create_task(bus.executor(user="ann").execute("write", {"text": text})) for text in "ab"]
        await eventually(lambda: len(ledger.running) == 2)
        ledger.free.set()
        assert [result.output for result in await asyncio.gather(*calls)] == ["a", "b"]


async def test_reserved_places_are_the_order(place: Place) -> None:
    """Calls that come in another order than the model's run in that of their places; one that never comes is left."""
    ledger = Ledger()
    async with place.serving(ledger) as bus:
        executor = bus.executor()
        first, denied, second = executor.reserve(["write", "write", "write"])

        async def run(place: Any, text: str) -> None:
            async with executor.turn([ModelCall(text, "write", {"text": text})], places=[place]) as turn:
                await turn.results()

        later = asyncio.create_task(run(second, "second"))
        await eventually(lambda: second._waiter is not None)
        sooner = asyncio.create_task(run(first, "first"))
        await sooner
        assert not later.done()
        denied.leave()
        await later
        assert ledger.began == ["first", "second"]
        with pytest.raises(ConfigurationError, match="places"):
            executor.turn([ModelCall("c", "write", {})], places=executor.reserve(["nothing", "nothing"]))


async def test_a_waiting_call_that_is_cancelled_is_waited_for_by_nobody(place: Place) -> None:
    """A call that is cancelled while it waits, or before it begins to, does not run, and the calls behind it go on."""
    ledger = Ledger()
    async with place.serving(ledger) as bus:
        executor = bus.executor()
        ledger.free.clear()
        tasks = [asyncio.create_task(by_itself(executor, f"c{i}", "write", f"{i}")) for i in range(4)]
        await eventually(lambda: ledger.began == ["0"])
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        early = asyncio.create_task(by_itself(executor, "c9", "write", "9"))
        early.cancel()
        ledger.free.set()
        assert await asyncio.gather(tasks[0], *tasks[2:]) == ["0", "2", "3"]
        assert ledger.began == ["0", "2", "3"]
        assert len(executor._calls) == 0


async def test_turns_of_several_services_do_not_wait_for_each_other_in_a_ring() -> None:
    """In every order that calls of turns have, their places are taken at once, so that somebody can always go on."""
    order = CallOrder()
    turns = [[order.place(service, "alone") for service in services] for services in ("xy", "yx", "xyxy", "yyxx")]

    async def run(places: list[Any]) -> None:
        for place in places:
            await place.wait()
            await asyncio.sleep(0)
            place.leave()

    async with asyncio.timeout(10):
        await asyncio.gather(*map(run, turns))
    assert len(order) == 0


async def test_a_sticky_session_is_published_in_order() -> None:
    """Calls of a sticky session are published one after another, and not one after another's end; without a session they do not wait."""
    order = CallOrder()
    first, second, third = (order.place("s", "in turn") for _ in range(3))
    alone, after = order.place("s", "alone"), order.place("s", "in turn")
    await first.wait()
    waits = asyncio.create_task(second.wait())
    await asyncio.sleep(0)
    assert not waits.done()
    first.published()
    await waits
    third.leave()
    second.published()
    waits = asyncio.create_task(alone.wait())
    first.leave()
    await asyncio.sleep(0)
    assert not waits.done()
    second.leave()
    await waits
    last = asyncio.create_task(after.wait())
    await asyncio.sleep(0)
    assert not last.done()
    alone.leave()
    await last
    after.leave()
    assert len(order) == 0
