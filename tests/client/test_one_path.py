"""From a model's call to a publication there is one path: every state of the catalogue × every way to make the call."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.client.doors import (
    CALL,
    DOORS,
    OPTIONS,
    STATES,
    Door,
    Stage,
    absent,
    asked,
    described,
    execute,
    gone,
    gone_and_free,
    live,
    ran,
    revision,
    says,
    selected,
)
from tests.contract import Place
from tests.servers import eventually
from tests.tiers import pairs, some
from toolbus import ToolBus, ToolResult, sync
from toolbus.bus.client.confirmations import Confirmation
from toolbus.bus.client.executor.observers import Confirming, Requested
from toolbus.bus.middleware import Middleware, ToolCall
from toolbus.compat.nanoclaw import BusRegistry

pytestmark = pytest.mark.anyio


@pytest.fixture
def local(namespace: str) -> Place:
    """Return a namespace of the test's own in this process; everything tested here happens before anything is sent."""
    return Place("memory://", namespace)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing ran and nobody was asked."""
    ran.clear()
    asked.clear()


@pytest.mark.parametrize("options", some(OPTIONS[2:], OPTIONS), ids=["wait", "wait-true", "session-and-key"])
@pytest.mark.parametrize(("door", "state", "answer"), pairs(DOORS, STATES, [True, False]), ids=lambda each: getattr(each, "__name__", None))
async def test_a_person_is_asked_before_anything_is_published(
    local: Place, state: Any, door: Door, options: dict[str, Any], answer: bool
) -> None:
    """A call is cast, validated and confirmed before it runs, and observed as its tool says, whatever the catalogue knew at first."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        await state(stage)
        call = asyncio.create_task(door(stage, {"confirmer": says(answer), **options}))
        if state is not live:
            await eventually(lambda: len(bus._dispatcher._waiting) > 0 or call.done())
            if not call.done():
                await stage.come()
        text = await call
        await stage.close()
    if door is selected and state is absent:
        # What is not among the selected tools does not exist.
        assert "not_found" in text
        assert (ran, asked) == ([], [])
        return
    assert asked == [({"amount": 7}, [])]
    assert ran == ([7] if answer else [])
    if door not in (execute, selected):
        assert (text.startswith("paid 7 x") and len(text) == 200) if answer else text.startswith("Error (forbidden)")


@pytest.mark.few(5)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.__name__))
@pytest.mark.parametrize("state", [gone, gone_and_free, absent], ids=lambda state: str(state.__name__))
async def test_what_nobody_serves_is_not_asked_about(local: Place, state: Any, door: Door) -> None:
    """Without a wait, and when the wait is over, nobody is asked about a call that nobody could run."""
    for options in ({}, {"wait": 0.05}):
        async with local.bus() as bus:
            stage = Stage(local, bus)
            await state(stage)
            text = await door(stage, {"confirmer": says(True), **options})
            assert "not_found" in text if state is absent else "unavailable" in text
            assert (ran, asked) == ([], [])


# What becomes of the tool while the person thinks: the revisions that follow each other.
@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.__name__))
@pytest.mark.parametrize("middle", some([True], [False, True]), ids=["plain", "middleware"])
@pytest.mark.parametrize(
    ("becomes", "questions", "result"),
    [("asks", [7], [7]), ("other", [7, "7"], ["7"]), ("free", [7], [7]), ("gone", [7], [])],
)
async def test_a_permission_is_for_one_revision(
    local: Place, door: Door, middle: bool, becomes: str, questions: list[Any], result: list[Any]
) -> None:
    """A call goes to the revision that was confirmed; another revision is prepared, and confirmed, again."""

    async def around(call: ToolCall, next: Any) -> ToolResult:
        await asyncio.sleep(0)
        return await next(call)  # type: ignore[no-any-return]

    middleware: list[Middleware] = [around] if middle else []
    async with ToolBus(settings=local.settings, middleware=middleware) as bus:
        stage = Stage(local, bus)
        await live(stage)

        async def confirmer(confirmation: Confirmation) -> bool:
            asked.append(confirmation.arguments["amount"])
            if len(asked) == 1:
                await (stage.go() if becomes == "gone" else stage.become(becomes))
            return True

        text = await door(stage, {"confirmer": confirmer})
        await stage.close()
    assert asked == questions
    assert ran == result
    assert ("unavailable" in text) == (becomes == "gone")


async def test_a_worker_that_restarts_needs_no_second_permission(local: Place) -> None:
    """A tool that leaves and comes back the same while a person thinks, or while the call waits after that, is asked about once."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        await live(stage)

        async def confirmer(confirmation: Confirmation) -> bool:
            asked.append(confirmation.digest)
            await stage.go()
            return True

        call = asyncio.create_task(bus.executor(confirmer=confirmer, wait=20).execute("pay", {"amount": 1}))
        await eventually(lambda: bool(asked) and len(bus._dispatcher._waiting) > 0)
        await stage.come()
        assert (await call).success
        await stage.close()
    assert (ran, len(asked)) == ([1], 1)


async def test_a_tool_that_changes_again_and_again_is_given_up(local: Place) -> None:
    """A person is not asked for ever about a tool that is another one each time: after five revisions the call is unavailable."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        await live(stage)

        async def confirmer(confirmation: Confirmation) -> bool:
            asked.append(confirmation.arguments["amount"])
            await stage.become("other" if len(asked) % 2 else "asks")
            return True

        result = await bus.executor(confirmer=confirmer).execute("pay", {"amount": "7"})
        await stage.close()
    assert result.error is not None
    assert (result.error.type, result.error.code, result.error.retryable) == ("unavailable", "revised", True)
    assert (asked, ran) == ([7, "7", 7, "7", 7], [])


async def test_an_operators_descriptor_gives_way_to_a_tool_that_asks(local: Place) -> None:
    """A descriptor that asks nobody stands for a tool until its worker publishes one that does: that one counts."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        await described(stage)
        call = asyncio.create_task(bus.executor(confirmer=says(False), wait=20).execute("pay", {"amount": 7}))
        await eventually(lambda: len(bus._dispatcher._waiting) > 0)
        await bus.delete("tool/pay")
        await stage.come()
        result = await call
        await stage.close()
    assert result.error is not None
    assert result.error.type == "forbidden"
    assert ran == []


async def test_arguments_that_no_revision_takes_are_refused_unasked(local: Place) -> None:
    """A call that waited for its tool is validated against what came, before a person is asked."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        call = asyncio.create_task(bus.executor(confirmer=says(True), wait=20).execute("pay", {"amount": "seven"}))
        await eventually(lambda: len(bus._dispatcher._waiting) > 0)
        await stage.come()
        result = await call
        await stage.close()
    assert result.error is not None
    assert result.error.type == "invalid_arguments"
    assert (asked, ran) == ([], [])


async def test_whoever_has_the_arguments_in_hand_can_not_change_what_runs(local: Place) -> None:
    """A call runs with the arguments that were shown, though the confirmer, an observer and the program change theirs meanwhile."""
    given = {"amount": 7}
    async with local.bus() as bus:
        stage = Stage(local, bus)
        await live(stage)

        def confirmer(confirmation: Confirmation) -> bool:
            asked.append(str(confirmation))
            confirmation.arguments["amount"] = 8  # as a careless program might
            given["amount"] = 9
            return True

        bus.events.subscribe(lambda told: told.event.arguments.update(amount=10) if isinstance(told.event, Requested) and asked else None)
        assert (await bus.executor(confirmer=confirmer).execute("pay", given)).success
        await stage.close()
    assert '"amount": 7' in asked[0]
    assert ran == [7]


async def test_middleware_can_not_change_what_was_allowed(local: Place) -> None:
    """A call that middleware made another one than a person allowed is forbidden, and one that nobody was asked about is not affected."""

    async def doubling(call: ToolCall, next: Any) -> ToolResult:
        return await next(msgspec.structs.replace(call, arguments={"amount": 2 * call.arguments["amount"]}))  # type: ignore[no-any-return]

    async with ToolBus(settings=local.settings, middleware=[doubling]) as bus:
        stage = Stage(local, bus)
        await live(stage)
        error = (await bus.executor(confirmer=says(True)).execute("pay", {"amount": 7})).error
        assert error is not None
        assert (error.type, error.code) == ("forbidden", "unconfirmed")
        assert ran == []
        assert (await bus.call("pay", {"amount": 7})).success, "the program's own door asks nobody"
        await stage.close()
    assert ran == [14]


async def test_a_permission_is_used_up_by_one_publication(local: Place) -> None:
    """Middleware that runs the rest again publishes what a person allowed once; a further publication is forbidden."""
    answers: list[ToolResult] = []

    async def thrice(call: ToolCall, next: Any) -> ToolResult:
        answers.extend([await next(call) for _ in range(3)])
        return answers[0]

    async with ToolBus(settings=local.settings, middleware=[thrice]) as bus:
        stage = Stage(local, bus)
        await live(stage)
        assert (await bus.executor(confirmer=says(True)).execute("pay", {"amount": 7})).success
        await stage.close()
    assert ran == [7]
    assert [answer.error and answer.error.type for answer in answers] == [None, "forbidden", "forbidden"]


async def test_observers_get_copies_of_the_arguments(local: Place) -> None:
    """An observer that changes its arguments changes neither the call, nor the caller's arguments, nor the text of the confirmation."""
    given = {"amount": 7}
    read: list[Any] = []

    def careless(told: Any) -> None:
        if isinstance(told.event, Requested):
            told.event.arguments["amount"] = 8
        if isinstance(told.event, Confirming):
            told.event.confirmation.arguments["amount"] = 9

    async with local.bus() as bus:
        stage = Stage(local, bus)
        await live(stage)
        bus.events.subscribe(careless)
        assert (await bus.executor(confirmer=lambda asks: read.append(asks.arguments) or True).execute("pay", given)).success
        await stage.close()
    assert (read, ran, given) == ([{"amount": 7}], [7], {"amount": 7})


@pytest.mark.parametrize("ends", ["close", "session", "cancel"])
async def test_a_call_that_waits_for_its_tool_can_be_ended(local: Place, ends: str) -> None:
    """Closing the bus or the session ends a call that waits for its tool; a cancelled one waits no more, and nothing runs later."""
    async with local.bus() as bus:
        stage = Stage(local, bus)
        call = asyncio.create_task(bus.executor(wait=60, session="s").execute("pay", {"amount": 7}))
        await eventually(lambda: len(bus._dispatcher._waiting) > 0)
        if ends == "close":
            await bus.aclose()
        elif ends == "session":
            await bus.bind(session="s").close_session()
        else:
            call.cancel()
        done, _ = await asyncio.wait([call], timeout=20)
        assert done
        assert call.cancelled() if ends == "cancel" else call.result().error is not None
        assert not len(bus._dispatcher._waiting)
        await stage.come()
        await stage.close()
    assert ran == []


@pytest.mark.parametrize("door", ["sync", "nanoclaw"])
async def test_threads_take_the_same_path(place: Place, door: str) -> None:
    """A model's call from a thread waits for a person, by the blocking bus and by the other project's registry."""
    async with place.worker(revision()), place.bus() as other:
        await other.wait_for_tool("pay")

        def call() -> str:
            with sync.ToolBus(settings=place.settings) as bus:
                if door == "sync":
                    return str(bus.process_tool_calls(CALL)[0]["content"])
                return str(BusRegistry(bus).execute("pay", {"amount": 7})["error"])

        for answer in (False, True):
            made = asyncio.create_task(asyncio.to_thread(call))
            [request] = await eventually(other.confirmations.pending, timeout=20)
            await (other.confirmations.allow(request.id) if answer else other.confirmations.deny(request.id, "no"))
            text = await made
            assert ("no" in text and "did not allow" in text) is not answer, text
            assert ran == ([7] if answer else [])
