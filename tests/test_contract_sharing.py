"""Calls that carry an idempotency key: one execution for everybody who has the key, over every transport."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, Retry, Settings, ToolError, ToolResult, Worker, invocation, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.worker import Beginnings
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.values.events import Finished, Text

pytestmark = pytest.mark.anyio


class Stage:
    """State that the tools of this file share with their tests."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.cancelled = 0
        self.go = asyncio.Event()
        self.fail = False


stage: Stage


@pytest.fixture(autouse=True)
def fresh_stage(anyio_backend: Any) -> None:
    """Return a stage for one test."""
    global stage  # noqa: PLW0603
    stage = Stage()


@tool(service="sharing", effect="idempotent")
async def recite(words: str) -> Any:
    """Say words one by one, the second half when told to."""
    stage.starts.append(invocation().id)
    said = words.split()
    try:
        for number, word in enumerate(said):
            if number == len(said) // 2:
                await stage.go.wait()
            yield f"{word} "
    except asyncio.CancelledError:
        stage.cancelled += 1
        raise


@tool(service="sharing", effect="idempotent")
async def fragile() -> str:
    """Fail while the stage says so."""
    stage.starts.append(invocation().id)
    if stage.fail:
        raise ToolError("not now", code="busy")
    return "well"


@tool(service="sharing", effect="idempotent", retry=Retry(attempts=2, delay=0.01))
async def trying() -> str:
    """Fail while the stage says so, and be tried again."""
    stage.starts.append(invocation().id)
    if stage.fail:
        raise ToolError("not now", code="busy", retryable=True)
    return "well"


@tool(service="sharing", effect="once")
async def fragile_once() -> str:
    """Fail while the stage says so, with an effect."""
    stage.starts.append(invocation().id)
    if stage.fail:
        raise ToolError("not now", code="busy")
    return "well"


@tool(service="sharing", effect="once")
async def lingering_once() -> str:
    """Have an effect, and never come to an end."""
    stage.starts.append(invocation().id)
    try:
        await asyncio.Event().wait()
    finally:
        stage.cancelled += 1
    return "well"


@tool(service="sharing", effect="once")
async def counting_once(key: str) -> str:
    """Count what ran under a key."""
    stage.starts.append(key)
    await asyncio.sleep(0.005)
    return "counted"


async def test_two_callers_with_one_key_share_one_execution(place: Place) -> None:
    """Both get the whole stream and the result of a single run, also when the second comes late."""
    async with place.serving(recite) as bus, place.bus() as other:
        first = asyncio.create_task(bus.call("recite", {"words": "a b c d"}, idempotency_key="k"))
        await eventually(lambda: stage.starts)
        pieces: list[str] = []
        async with other.stream("recite", {"words": "a b c d"}, idempotency_key="k") as call:
            async for text in call:
                pieces.append(text)
                if "b " in "".join(pieces):
                    stage.go.set()
        assert "".join(pieces) == "a b c d "
        assert (await first).output == "a b c d "
        assert len(stage.starts) == 1


async def test_two_callers_of_one_process_share_too(place: Place) -> None:
    """Calls of one bus with the same key are answered each, by one run."""
    async with place.serving(recite) as bus:
        stage.go.set()
        results = await asyncio.gather(*(bus.call("recite", {"words": "a b"}, idempotency_key="k") for _ in range(5)))
        assert [result.output for result in results] == ["a b "] * 5
        assert len(stage.starts) == 1


async def test_a_finished_call_is_found_again(place: Place) -> None:
    """Within the retention the same key gives the result that is there, without a second run, also after the agent is gone."""
    async with place.worker(recite):
        stage.go.set()
        async with place.bus() as bus:
            await bus.wait_for_tool("recite")
            assert (await bus.call("recite", {"words": "x y"}, idempotency_key="k")).output == "x y "
        async with place.bus() as restarted:
            result = await restarted.call("recite", {"words": "x y"}, idempotency_key="k")
            assert (result.output, len(stage.starts)) == ("x y ", 1)


async def test_the_stream_goes_on_from_a_given_position(place: Place) -> None:
    """A caller that has some of the text gets the rest only, and the whole as the result."""
    async with place.serving(recite) as bus:
        stage.go.set()
        await bus.call("recite", {"words": "one two three four"}, idempotency_key="k")
        async with bus.stream("recite", {"words": "one two three four"}, idempotency_key="k", resume_from=len("one tw")) as call:
            events = [event async for event in call.events()]
        assert "".join(event.text for event in events if isinstance(event, Text)) == "o three four "
        assert isinstance(events[-1], Finished)
        assert events[-1].result.output == "one two three four "
        with pytest.raises(ConfigurationError, match="resume_from"):
            await bus.call("recite", {"words": ""}, resume_from=-1)


async def test_other_keys_users_and_arguments_are_not_shared(place: Place) -> None:
    """Another key or user is another call; the same key with other arguments or for another tool is refused."""

    @tool(effect="read")
    async def other(words: str) -> str:
        raise AssertionError("it must not run")

    async with place.serving(recite, other) as bus:
        stage.go.set()
        await bus.call("recite", {"words": "a b"}, idempotency_key="k", user="alice")
        await bus.call("recite", {"words": "a b"}, idempotency_key="k", user="bob")
        await bus.call("recite", {"words": "a b"}, idempotency_key="l", user="alice")
        assert len(stage.starts) == 3
        for name, words in (("recite", "other"), ("other", "a b")):
            result = await bus.call(name, {"words": words}, idempotency_key="k", user="alice")
            assert result.error is not None
            assert (result.error.type, result.error.code) == ("invalid_arguments", "idempotency_conflict")


async def test_one_caller_that_cancels_does_not_take_the_others_answer(place: Place) -> None:
    """The run is cancelled when the last caller is gone, and not before."""
    async with place.serving(recite) as bus, place.bus() as other:
        calls = [asyncio.create_task(each.call("recite", {"words": "a b c d"}, idempotency_key="k")) for each in (bus, other)]
        await eventually(lambda: stage.starts)
        await eventually(lambda: bus.statistics()["frames"] and other.statistics()["frames"])
        calls[0].cancel()
        await asyncio.wait([calls[0]])
        third = asyncio.create_task(bus.call("recite", {"words": "a b c d"}, idempotency_key="k"))
        await eventually(lambda: bus.statistics()["in_flight"])
        assert stage.cancelled == 0
        for call in (calls[1], third):
            call.cancel()
        await asyncio.wait([calls[1], third])
        await eventually(lambda: stage.cancelled == 1)


async def test_a_failure_frees_the_key(place: Place) -> None:
    """The next call with the key runs the tool again, since failures are never kept."""
    async with place.serving(fragile) as bus:
        stage.fail = True
        failed = await bus.call("fragile", idempotency_key="k")
        assert failed.error is not None
        assert failed.error.code == "busy"
        stage.fail = False
        assert (await bus.call("fragile", idempotency_key="k")).output == "well"
        assert len(stage.starts) == 2


async def test_a_failure_that_is_given_up_frees_the_key(place: Place) -> None:
    """Also when the last attempt has failed and the request has become a dead letter, the next call runs the tool again."""
    async with place.serving(trying) as bus:
        stage.fail = True
        failed = await bus.call("trying", idempotency_key="k")
        assert failed.error is not None
        assert (failed.error.code, len(stage.starts)) == ("busy", 2)
        stage.fail = False
        assert (await bus.call("trying", idempotency_key="k")).output == "well"


async def test_a_failure_of_once_work_keeps_the_key(place: Place) -> None:
    """A call that may have had its effect is not run again under the same key: its failure is the answer."""
    async with place.serving(fragile_once) as bus:
        stage.fail = True
        for _ in range(2):
            failed = await bus.call("fragile_once", idempotency_key="k")
            assert failed.error is not None
            assert failed.error.code == "busy"
        assert len(stage.starts) == 1


async def test_once_work_that_was_cancelled_while_it_ran_keeps_the_key(place: Place) -> None:
    """Its effect may have happened, so the same key does not run it again: the next caller is told that nobody knows."""
    async with place.serving(lingering_once) as bus:
        cancelled = asyncio.create_task(bus.call("lingering_once", idempotency_key="k"))
        await eventually(lambda: stage.starts)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await eventually(lambda: stage.cancelled)
        again = await bus.call("lingering_once", idempotency_key="k")
        assert again.error is not None
        assert (again.error.type, again.error.code) == ("outcome_unknown", "cancelled")
        assert len(stage.starts) == 1


class Held:
    """Makes workers wait where `once` work begins: before its mark is set, or between the mark and the handler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, marked: bool) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(Beginnings, "begin", self._held(Beginnings.begin, marked))

    def _held(self, begin: Any, marked: bool) -> Any:
        async def held(beginnings: Any, delivery: Any) -> Any:
            state = await begin(beginnings, delivery) if marked else None
            self.reached.set()
            await self.go.wait()
            return state if marked else await begin(beginnings, delivery)

        return held


@pytest.mark.parametrize("way", ["cancel", "deadline", "drain"])
@pytest.mark.parametrize("marked", [True, False])
async def test_once_work_that_never_began_frees_the_key(place: Place, monkeypatch: pytest.MonkeyPatch, way: str, marked: bool) -> None:
    """A worker that had taken the call and not begun its handler says so, and the next call with the key runs."""
    held = Held(monkeypatch, marked=marked)
    async with place.bus() as bus:
        async with place.worker(fragile_once, grace=0.1) as worker:
            await bus.wait_for_tool("fragile_once")
            timeout = 1.0 if way == "deadline" else 30.0
            first = asyncio.create_task(bus.call("fragile_once", idempotency_key="k", timeout=timeout))
            await held.reached.wait()
            if way == "cancel":
                first.cancel()
            elif way == "drain":
                await worker.drain()
            await asyncio.wait([first])
            held.go.set()
            if way != "drain":
                assert (await bus.call("fragile_once", idempotency_key="k")).output == "well"
        if way == "drain":
            error = first.result().error
            assert error is not None
            assert (error.type, error.code, error.retryable) == ("unavailable", "worker_stopped", True)
            async with place.worker(fragile_once):
                assert (await bus.call("fragile_once", idempotency_key="k", wait=10)).output == "well"
    assert len(stage.starts) == 1


async def test_once_work_that_is_refused_frees_the_key(place: Place) -> None:
    """Middleware that lets nothing pass, or arguments that do not fit: the handler never began, so the next call with the key runs."""
    refusals = ["refuse", "spoil"]

    async def around(call: ToolCall, next: Next) -> ToolResult:
        how = refusals.pop(0) if refusals else ""
        if how == "refuse":
            return ToolResult.fail("not today")
        return await next(call.with_arguments({"wrong": 1}) if how == "spoil" else call)

    worker = Worker([fragile_once], settings=place.settings, middleware=[around])
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("fragile_once")
        results = [await bus.call("fragile_once", idempotency_key="k") for _ in range(4)]
    errors = [result.error.type if result.error else result.output for result in results]
    assert errors == ["tool_error", "invalid_arguments", "well", "well"]
    assert len(stage.starts) == 1


async def test_calls_that_are_cancelled_at_once_burn_no_key(place: Place) -> None:
    """Whenever the cancellation comes, the next caller gets the work done, or hears that it may have been: never that it was cancelled."""
    async with place.worker(counting_once) as worker, place.bus() as bus, place.bus() as other:
        await bus.wait_for_tool("counting_once")
        await other.wait_for_tool("counting_once")
        for number in range(60):
            key = f"k{number}"
            first = asyncio.create_task(bus.call("counting_once", {"key": key}, idempotency_key=key))
            while not (worker.statistics()["held"] or first.done()):  # noqa: ASYNC110 - the very next turn of the loop matters
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            result = await other.call("counting_once", {"key": key}, idempotency_key=key)
            assert result.output == "counted" or (result.error and result.error.type == "outcome_unknown"), result
            assert stage.starts.count(key) == 1


async def test_a_refusal_keeps_the_key_of_work_that_an_earlier_attempt_began(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """This worker never began it, but the mark says that another one did."""
    held = Held(monkeypatch, marked=False)
    settings = place.settings
    async with place.serving(fragile_once) as bus:
        first = asyncio.create_task(bus.call("fragile_once", idempotency_key="k"))
        await held.reached.wait()
        with redis.Redis.from_url(settings.url) as client:
            (stream,) = client.scan_iter(f"tb:{{{settings.namespace}}}:call:*")
            client.set(stream.replace(b":call:", b":started:"), "another", px=60_000)
            first.cancel()
            await asyncio.wait([first])
            await eventually(lambda: client.xlen(f"tb:{{{settings.namespace}}}:q:sharing") == 0)
            assert len([*client.scan_iter(f"tb:{{{settings.namespace}}}:key:*")]) == 1
        held.go.set()
    assert stage.starts == []


async def test_a_call_that_nobody_can_run_frees_the_key(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A tool that its service does not have, and a request that an operator purges, leave no record of the key."""
    caplog.set_level(logging.INFO, "toolbus")
    settings = place.settings
    async with place.serving(fragile_once, role="operator") as bus:
        ghost = {"type": "tool-service", "name": "ghost", "description": "None.", "service": "sharing", "effect": "once"}
        await bus.put("tool/ghost", json.dumps(ghost).encode())
        await bus.wait_for_tool("ghost")
        with redis.Redis.from_url(settings.url) as client:
            result = await bus.call("ghost", idempotency_key="k")
            assert result.error is not None
            assert result.error.type == "not_found"
            assert [*client.scan_iter(f"tb:{{{settings.namespace}}}:key:*")] == []
            async with Admin(settings) as admin:
                await admin.pause("sharing")
                await eventually(lambda: "service.paused" in caplog.text)
                waiting = asyncio.create_task(bus.call("fragile_once", idempotency_key="k"))
                await eventually(lambda: client.xlen(f"tb:{{{settings.namespace}}}:q:sharing"))
                assert await admin.purge("sharing") == 1
                result = await waiting
                await admin.resume("sharing")
            assert result.error is not None
            assert result.error.code == "purged"
            assert [*client.scan_iter(f"tb:{{{settings.namespace}}}:key:*")] == []
        await bus.delete("tool/ghost")


async def test_another_session_does_not_get_the_answer(place: Place) -> None:
    """A key of one session is refused in another, which may not read what that one did; in its own the answer is found again."""
    async with place.serving(fragile) as bus:
        first = await bus.call("fragile", idempotency_key="k", user="al", session="a")
        other = await bus.call("fragile", idempotency_key="k", user="al", session="b")
        again = await bus.call("fragile", idempotency_key="k", user="al", session="a")
    assert (first.output, again.output, len(stage.starts)) == ("well", "well", 1)
    assert other.error is not None
    assert other.error.code == "idempotency_conflict"


async def test_the_answer_outlives_the_agent_that_asked(place: Place) -> None:
    """A caller whose agent was cut off in mid-call is found by the restarted one: same run, whole stream."""
    settings = Settings.load(base=place.settings, lease=2.0)
    async with place.worker(recite):
        lost = place.bus()
        await lost.open()
        await lost.wait_for_tool("recite")
        waiting = asyncio.create_task(lost.call("recite", {"words": "a b c d"}, idempotency_key="k"))
        await eventually(lambda: stage.starts)
        # As when its process is killed: its reply stream goes, and it says nothing more.
        client = redis.Redis.from_url(settings.url)
        client.delete(f"tb:{{{settings.namespace}}}:rsp:{lost.agent}")
        client.close()
        async with place.bus() as restarted:
            again = asyncio.create_task(restarted.call("recite", {"words": "a b c d"}, idempotency_key="k"))
            await eventually(lambda: restarted.statistics()["frames"] > 0)
            stage.go.set()
            assert (await again).output == "a b c d "
        waiting.cancel()
        await asyncio.wait([waiting])
        await lost.aclose()
    assert len(stage.starts) == 1
