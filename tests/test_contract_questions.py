"""Running handlers that ask a person, over every transport: answers, time that stands still, and calls that end meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.contract import Place, first_of, withdrawn
from tests.servers import eventually
from toolbus import ConfigurationError, ToolError, invocation, tool
from toolbus.bus.values.events import Answered, Asked, Finished, Text
from toolbus.bus.values.results import ConfirmationClosed

pytestmark = pytest.mark.anyio


class Stage:
    """Observations of the tools of this file."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.notes: list[str] = []
        self.cancelled = 0
        self.remaining: list[float] = []


stage: Stage


@pytest.fixture(autouse=True)
def fresh_stage(anyio_backend: Any) -> None:
    """Return a stage for one test."""
    global stage  # noqa: PLW0603
    stage = Stage()


@tool(service="asking", effect="read")
async def clean(rows: int) -> str:
    """Clean up."""
    current = invocation()
    stage.runs.append(current.id)
    stage.remaining.append(current.remaining)
    try:
        answer = await current.confirm(f"Delete {rows} rows?", {"rows": list(range(rows))})
    except asyncio.CancelledError:
        stage.cancelled += 1
        raise
    stage.remaining.append(current.remaining)
    stage.notes.append(str(answer))
    return f"deleted {rows}"


@tool(service="asking", effect="read")
def clean_in_thread(rows: int) -> str:
    """Clean up in a thread."""
    invocation().confirm_sync(f"Delete {rows} rows?")
    return f"deleted {rows}"


@tool(service="asking", effect="read")
def clean_step_by_step(rows: int) -> Iterator[str]:
    """Clean up row by row."""
    for row in range(rows):
        yield f"{row} "
        invocation().confirm_sync(f"Row {row}?")


@tool(service="asking", effect="once")
async def clean_gently(rows: int) -> str:
    """Ask, and do with a no."""
    try:
        await invocation().confirm("All?")
    except ToolError as error:
        return f"nothing, since {error.error.code}"
    return "all"


@tool(service="asking", effect="read")
async def ask_for(seconds: float) -> str:
    """Ask for so long."""
    await invocation().confirm("Well?", timeout=seconds)
    return "well"


async def after(seconds: float) -> None:
    """Let time pass that is to be without effect."""
    start = time.monotonic()
    await eventually(lambda: time.monotonic() > start + seconds, timeout=seconds + 5)


async def test_a_handler_asks_and_its_time_stands_still(place: Place) -> None:
    """The question can be answered from another bus, long after the call's timeout and idle timeout; the tool then has what it had left."""
    async with place.serving(clean) as bus, place.bus() as other:
        call = asyncio.create_task(bus.call("clean", {"rows": 2}, user="alice", session="s", timeout=1.5, idle_timeout=1.4))
        request = await first_of(other)
        assert (request.asker, request.tool, request.service, request.user, request.session) == ("worker", "clean", "asking", "alice", "s")
        assert str(request).startswith("clean for alice asks:\n  Delete 2 rows?\n  Arguments: {")
        assert request.call == stage.runs[0]
        await after(1.7)
        assert not call.done()
        await other.confirmations.allow(request.id, "fine", by="bob")
        result = await call
        assert result.output == "deleted 2", result.error
        assert stage.notes == ["allowed by bob: fine"]
        before, left = stage.remaining
        assert before - 0.5 < left <= before
        assert len(stage.runs) == 1
        assert await other.confirmations.pending() == []


@pytest.mark.parametrize("name", ["clean", "clean_in_thread", "clean_step_by_step"])
async def test_every_kind_of_handler_may_ask(place: Place, name: str) -> None:
    """Coroutines, functions and generators in threads: allowed they go on, denied they end as forbidden with the reason."""
    async with place.serving(clean, clean_in_thread, clean_step_by_step) as bus:
        call = asyncio.create_task(bus.call(name, {"rows": 1}))
        await bus.confirmations.allow((await first_of(bus)).id)
        assert (await call).success
        call = asyncio.create_task(bus.call(name, {"rows": 1}))
        await bus.confirmations.deny((await first_of(bus)).id, "not now", by="bob")
        error = (await call).error
        assert error is not None
        assert (error.type, error.code) == ("forbidden", "denied")
        assert error.message.startswith("bob did not allow ")
        assert error.message.endswith("not now")


async def test_the_state_is_seen_in_the_stream(place: Place) -> None:
    """The reader of a call's events sees that it waits, under which id, and how it went on, in order with the text."""
    async with place.serving(clean_step_by_step) as bus, place.bus() as other:
        seen: list[Any] = []
        async with bus.stream("clean_step_by_step", {"rows": 2}, timeout=5.0) as call:
            async for event in call.events():
                if isinstance(event, Asked):
                    assert 290 < event.timeout <= 300.0
                    seen.append(event.question)
                    await other.confirmations.allow(event.id)
                elif isinstance(event, (Text, Answered)):
                    seen.append(event.text if isinstance(event, Text) else event.allowed)
                elif isinstance(event, Finished):
                    assert event.result.output == "0 1 "
    assert seen == ["0 ", "Row 0?", True, "1 ", "Row 1?", True]


async def test_a_handler_may_do_without(place: Place) -> None:
    """A no is an exception that a handler can catch."""
    async with place.serving(clean_gently) as bus:
        call = asyncio.create_task(bus.call("clean_gently", {"rows": 1}))
        await bus.confirmations.deny((await first_of(bus)).id)
        assert (await call).output == "nothing, since denied"


async def test_nobody_answers_a_handler(place: Place) -> None:
    """Without an answer in time the call ends as deadline_exceeded with the question, and the request is gone; a wrong time is an error."""
    async with place.serving(ask_for) as bus:
        error = (await bus.call("ask_for", {"seconds": 0.2})).error
        assert error is not None
        assert (error.type, error.code, error.message) == ("deadline_exceeded", "unconfirmed", "nobody answered within 0.2 s: Well?")
        assert await bus.confirmations.pending() == []
        error = (await bus.call("ask_for", {"seconds": -1})).error
        assert error is not None
        assert error.code == ConfigurationError.__name__


async def test_waiting_is_bounded(place: Place) -> None:
    """The longest wait of a caller is the maximum timeout of a call plus its own timeout, however long a handler asks for."""
    async with place.serving(ask_for, max_timeout=1.0) as bus:
        started = time.monotonic()
        error = (await bus.call("ask_for", {"seconds": 500.0}, timeout=0.9)).error
        assert error is not None
        assert (error.type, error.message) == ("deadline_exceeded", "nobody answered within 1 s: Well?")
        assert time.monotonic() - started < 10.0


async def test_a_cancelled_call_withdraws_its_question(place: Place) -> None:
    """The handler is cancelled, and nobody is asked any more; in a thread too."""
    async with place.serving(clean, clean_in_thread) as bus, place.bus() as other:
        for name in ("clean", "clean_in_thread"):
            call = asyncio.create_task(bus.call(name, {"rows": 1}))
            request = await first_of(other)
            call.cancel()
            await withdrawn(other, request)
        assert stage.cancelled == 1


async def test_questions_wait_for_each_other(place: Place) -> None:
    """Questions of one run are asked one at a time, and all of their waiting is given back."""

    @tool(service="asking-twice", effect="read", replace=True)
    async def twice() -> str:
        """Ask two things at once."""
        answers = await asyncio.gather(invocation().confirm("a?"), invocation().confirm("b?"))
        return " ".join(str(each) for each in answers)

    async with place.serving(twice) as bus:
        call = asyncio.create_task(bus.call("twice", timeout=1.0))
        for _ in range(2):
            request = await first_of(bus)
            await after(0.6)
            await bus.confirmations.allow(request.id, request.question)
        assert (await call).output == "allowed: a? allowed: b?"


@pytest.mark.usefixtures("slow")
async def test_a_drained_worker_hands_its_question_on(place: Place) -> None:
    """A call that waits for a person when its worker stops is asked anew by the next one, with the time it had; the old request is gone."""
    async with place.bus() as bus:
        first, second = place.worker(clean, grace=0.1), place.worker(clean)
        await first.__aenter__()
        await bus.wait_for_tool("clean")
        call = asyncio.create_task(bus.call("clean", {"rows": 1}, timeout=2.0))
        old = await first_of(bus)
        await after(2.1)
        await asyncio.gather(second.__aenter__(), first.drain())
        await eventually(lambda: len(stage.runs) == 2, timeout=20)
        new = await first_of(bus)
        assert new.id != old.id
        with pytest.raises(ConfirmationClosed):
            await bus.confirmations.allow(old.id)
        await after(2.1)
        await bus.confirmations.allow(new.id)
        result = await call
        assert result.success, result.error
        await second.drain()


async def test_callers_that_share_a_call_all_wait(place: Place) -> None:
    """Two callers with one idempotency key wait for the one question, beyond both of their timeouts."""
    async with place.serving(clean) as bus, place.bus() as other:
        calls = [asyncio.create_task(each.call("clean", {"rows": 1}, idempotency_key="k", timeout=1.5)) for each in (bus, other)]
        request = await first_of(bus)
        await after(1.7)
        await bus.confirmations.allow(request.id)
        assert [(await call).output for call in calls] == ["deleted 1"] * 2
        assert len(stage.runs) == 1


@tool(service="asking", effect="read")
async def ask_and_work(wait: float, seconds: float) -> str:
    """Ask, and then work for so long."""
    stage.runs.append(invocation().id)
    await invocation().confirm("Well?", timeout=wait)
    stage.remaining.append(invocation().remaining)
    await asyncio.sleep(seconds)
    return "done"


@pytest.mark.parametrize("wait", [300.0, 5.0])
async def test_a_caller_that_joins_while_a_person_is_asked_brings_its_time(place: Place, wait: float) -> None:
    """The run goes on after the answer for the caller that has more time, be that until before or after the latest end of the wait."""
    arguments = {"wait": wait, "seconds": 1.5}
    async with place.serving(ask_and_work) as bus, place.bus() as other:
        first = asyncio.create_task(bus.call("ask_and_work", arguments, idempotency_key="k", timeout=1.4))
        request = await first_of(bus)
        async with other.stream("ask_and_work", arguments, idempotency_key="k", timeout=30.0) as joining:
            events = joining.events()
            while not isinstance(await anext(events), Asked):
                pass
            await bus.confirmations.allow(request.id)
            result = await joining.result()
        assert (await first).error is not None
        assert (result.output, result.error, len(stage.runs)) == ("done", None, 1)
        assert stage.remaining[0] > 10.0


async def test_the_note_of_a_deadline_goes_with_the_call(place: Place) -> None:
    """While a handler waits its later deadline stands on the server, with a TTL; after the call nothing of it is left."""
    prefix = f"tb:{{{place.settings.namespace}}}:"
    async with place.serving(clean) as bus:
        # Generous, so that a crowded machine leaves some of it.
        call = asyncio.create_task(bus.call("clean", {"rows": 1}, timeout=60.0))
        request = await first_of(bus)
        with redis.Redis.from_url(place.settings.url, decode_responses=True) as client:
            [key] = client.scan_iter(f"{prefix}pause:*")
            deadline, since, until = map(int, str(client.get(key)).split())
            assert until - since == pytest.approx(300_000, abs=2)
            assert 30_000 < deadline - since <= 60_000 + 10, "both are converted to the server's clock"
            assert 300_000 < client.pttl(key) < 450_000
            await bus.confirmations.allow(request.id)
            assert (await call).success
            await eventually(lambda: not client.exists(key))


async def test_confirm_sync_belongs_in_threads(place: Place) -> None:
    """In the event loop confirm_sync() says what to use instead."""

    @tool(service="asking-wrongly", effect="read", replace=True)
    async def wrongly() -> str:
        """Block."""
        invocation().confirm_sync("?")
        return ""

    async with place.serving(wrongly) as bus:
        error = (await bus.call("wrongly")).error
    assert error is not None
    assert "await invocation().confirm(...)" in error.message


async def test_an_executors_confirmer_answers_handlers_too(place: Place) -> None:
    """The confirmer of an executor is asked what a running handler asks; another process may be quicker, and ends its question."""
    asked: list[str] = []

    def confirmer(confirmation: Any) -> bool | None:
        asked.append(str(confirmation))
        return None if confirmation.arguments["rows"] == 3 else confirmation.arguments["rows"] == 1 or confirmation.deny("too many")

    async with place.serving(clean) as bus, place.bus() as other:
        executor = bus.executor(confirmer=confirmer, user="alice")
        assert (await executor.execute("clean", {"rows": 1})).output == "deleted 1"
        assert asked[0].startswith("clean for alice asks:\n  Delete 1 rows?\n  Arguments: ")
        error = (await executor.execute("clean", {"rows": 2})).error
        assert error is not None
        assert (error.type, error.message) == ("forbidden", "a person did not allow 'Delete 2 rows?': too many")
        call = asyncio.create_task(executor.execute("clean", {"rows": 3}))
        await other.confirmations.allow((await first_of(other)).id)
        assert (await call).output == "deleted 3"
