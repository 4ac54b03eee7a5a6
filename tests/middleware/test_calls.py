"""Middleware around calls at the caller, over every transport."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.contract import Place
from tests.middleware.watching import Watch
from tests.servers import eventually
from toolbus import Blob, ConfigurationError, Progress, ToolBus, ToolError, ToolResult, invocation, sync, tool
from toolbus.bus.values.events import Finished, Started, Text
from toolbus.middleware import Cache, Next, ToolCall

pytestmark = pytest.mark.anyio

ids: list[str] = []


@tool(service="guarded", effect="read", timeout=20.0)
async def speak(words: int = 2):
    """Speak."""
    ids.append(invocation().id)
    for number in range(words):
        yield f"{number} "
    yield Progress(1)
    yield Blob("text/plain", b"b")


@tool(service="guarded", effect="read")
async def hang() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return ""


@tool(service="guarded", effect="once")
async def hang_once() -> str:
    """Hang, having begun."""
    await asyncio.Event().wait()
    return ""


@tool(service="guarded", effect="read")
async def fail() -> str:
    """Fail."""
    raise ToolError("no", code="c")


def guarded(place: Place, *middleware: Any, **changes: Any) -> ToolBus:
    """A bus with middleware."""
    return ToolBus(settings=place.with_(**changes), middleware=middleware)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("before", [False, True])
async def test_middleware_that_waits_ends_with_its_call(place: Place, before: bool, streaming: bool) -> None:
    """A call ends when its time is up, also while middleware waits before it or after it, and the middleware is cancelled."""
    ended = asyncio.Event()

    async def waiting(call: ToolCall, next: Next) -> ToolResult:
        result = ToolResult.ok() if before else await next(call)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return result

    async with place.worker(speak), guarded(place, waiting) as bus:
        await bus.wait_for_tool("speak")
        call = bus.stream("speak", timeout=0.5)
        if streaming:
            assert [type(event) async for event in call.events()][-1] is Finished
        error = (await call.result()).error
        assert error is not None
        assert (error.type, error.message) == ("deadline_exceeded", "no result within 0.5 s")
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize(("name", "type_"), [("hang", "deadline_exceeded"), ("hang_once", "outcome_unknown")])
async def test_the_time_of_middleware_is_part_of_the_timeout(place: Place, name: str, type_: str) -> None:
    """A call that began late within middleware ends in time, and says whether it may have taken effect."""

    async def later(call: ToolCall, next: Next) -> ToolResult:
        await eventually(lambda: time.monotonic() > began + 0.6)
        return await next(call)

    async with place.worker(hang), guarded(place, later) as bus:
        await bus.wait_for_tool(name)
        began = time.monotonic()
        error = (await bus.call(name, timeout=1.6)).error
        assert error is not None
        assert error.type == type_
        assert error.message.startswith("no result within 1.6 s")
        assert time.monotonic() - began < 10


async def test_calls_and_streams_pass_through_middleware(place: Place) -> None:
    """Results, text as it comes, events and ids are those of a bus without middleware, and the middleware sees each call whole."""
    watch = Watch()
    async with place.worker(speak), guarded(place, watch) as bus:
        result = await bus.call("speak", {"words": 3}, user="al", session="s")
        assert (result.output, result.meta.attempts, [blob.data for blob in result.content]) == ("0 1 2 ", 1, [b"b"])
        assert result.meta.id == ids[-1]
        async with bus.stream("speak") as call:
            assert "".join([text async for text in call]) == "0 1 "
        assert (call.id, (await call.result()).output, call.done) == (ids[-1], "0 1 ", True)
        async with bus.bind(user="bo").stream("speak") as call:
            events = [event async for event in call.events()]
        assert {type(event) for event in events} == {Started, Text, Progress, Blob, Finished}
        assert isinstance(events[-1], Finished)
        seen = watch.calls[0]
        assert (seen.tool, seen.service, seen.user, seen.session, seen.effect, seen.side) == ("speak", "guarded", "al", "s", "read", "call")
        assert (watch.calls[2].user, watch.results[2].output) == ("bo", "0 1 ")
        assert bus.statistics()["in_flight"] == 0


async def test_failures_and_unknown_tools_are_results(place: Place) -> None:
    """Every end of a call reaches the middleware as a value; plain iteration still raises."""
    watch = Watch()
    async with place.worker(fail), guarded(place, watch) as bus:
        assert (await bus.call("fail")).error is not None
        assert (await bus.call("nobody")).error is not None
        assert (await bus.service("guarded").call("al", {}, {})).error is not None
        with pytest.raises(ToolError, match="no"):
            async with bus.stream("fail") as call:
                [text async for text in call]
    types = [result.error.type for result in watch.results if result.error is not None]
    assert types == ["tool_error", "not_found", "not_found", "tool_error"]
    assert (watch.calls[1].service, watch.calls[2].name) == ("", "guarded")


async def test_middleware_answers_changes_and_repeats_calls(place: Place) -> None:
    """It may answer without a call, with other arguments, or call again; what it says is what callers hear."""
    times = 0

    async def mixed(call: ToolCall, next: Next) -> ToolResult:
        nonlocal times
        if call.arguments.get("words") == 7:
            return ToolResult(output="seven", content=(Blob("text/plain", b"7"),))
        if call.tool == "fail":
            times += 1
            first = await next(call)
            second = await next(call)
            assert first.meta.id == call.id != second.meta.id
            return ToolResult(output="saved")
        return await next(call.with_arguments({"words": 1}))

    async with place.worker(speak, fail), guarded(place, mixed) as bus:
        assert (await bus.call("speak", {"words": 7})).output == "seven"
        async with bus.stream("speak", {"words": 7}) as call:
            events = [event async for event in call.events()]
        assert events[:2] == [Text("seven"), Blob("text/plain", b"7")]
        assert (await bus.call("speak", {"words": 5})).output == "0 "
        assert ((await bus.call("fail")).output, times) == ("saved", 1)


async def test_middleware_that_raises_is_contained(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its exception is that call's error and a traceback in the log; a ToolError is the error it says."""

    async def broken(call: ToolCall, next: Next) -> ToolResult:
        if call.arguments.get("words") == 1:
            raise ToolError("not now", type="forbidden")
        if call.arguments.get("words") == 2:
            raise asyncio.CancelledError
        raise ValueError("mine")

    async with place.worker(speak), guarded(place, broken) as bus:
        said, cancelled, raised = [(await bus.call("speak", {"words": words})).error for words in (1, 2, 3)]
        assert said is not None
        assert cancelled is not None
        assert raised is not None
        assert (said.type, cancelled.type, raised.code) == ("forbidden", "cancelled", "ValueError")
        assert "middleware.failed" in caplog.text
        assert "Traceback" in caplog.text


async def test_wrong_options_are_exceptions_as_without_middleware(place: Place) -> None:
    """A wrong option raises ConfigurationError from call, result and iteration."""
    async with place.worker(speak), guarded(place, Watch()) as bus:
        with pytest.raises(ConfigurationError, match="timeout"):
            await bus.call("speak", timeout=-1)
        with pytest.raises(ConfigurationError, match="idle_timeout"):
            async with bus.stream("speak", idle_timeout=0) as call:
                [text async for text in call]
        with pytest.raises(ConfigurationError, match="there is no call option"):
            await bus.call("speak", colour="red")  # type: ignore[call-arg]
        wrong = await bus.call("speak", [1])  # type: ignore[arg-type]
        assert wrong.error is not None
        assert wrong.error.type == "invalid_arguments"
    with pytest.raises(ConfigurationError, match="not open"):
        await bus.call("speak")


async def test_cancelling_ends_the_call_and_what_runs_for_it(place: Place) -> None:
    """cancel(), leaving a stream and a cancelled wait reach the call within, also while the middleware still thinks."""
    entered, ended = asyncio.Event(), asyncio.Event()

    async def thinking(call: ToolCall, next: Next) -> ToolResult:
        entered.set()
        try:
            if call.session == "think":
                await asyncio.Event().wait()
            return await next(call)
        finally:
            ended.set()

    async with place.worker(hang), guarded(place, thinking) as bus:
        for session in ("think", ""):
            entered.clear()
            ended.clear()
            async with bus.stream("hang", session=session) as call:
                await asyncio.wait_for(entered.wait(), 5)
                if not session:
                    await eventually(lambda: bus.statistics()["in_flight"] == 1)
                call.cancel()
                error = (await call.result()).error
                assert error is not None
                assert error.type == "cancelled"
            await asyncio.wait_for(ended.wait(), 5)
            await eventually(lambda: bus.statistics()["in_flight"] == 0)
        waiting = asyncio.ensure_future(bus.call("hang"))
        await eventually(lambda: bus.statistics()["in_flight"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: bus.statistics()["in_flight"] == 0)


async def test_closing_the_bus_ends_calls_in_their_middleware(place: Place) -> None:
    """aclose() answers them as cancelled, and does not wait for good for middleware that will not end."""

    async def stubborn(call: ToolCall, next: Next) -> ToolResult:
        if call.session == "stubborn":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return ToolResult(output="too late")
        return await next(call)

    async with place.worker(hang):
        bus = guarded(place, stubborn)
        await bus.open()
        calls = [asyncio.ensure_future(bus.call("hang", session=session)) for session in ("stubborn", "")]
        await eventually(lambda: bus.statistics()["in_flight"] == 1)
        await asyncio.wait_for(bus.aclose(), 10)
        errors = [(await call).error for call in calls]
    assert [error.type for error in errors if error is not None] == ["cancelled", "cancelled"]


async def test_a_reader_that_is_too_slow_is_told(place: Place) -> None:
    """A stream behind middleware that nobody reads ends slow_consumer, like any other."""
    async with place.worker(speak), guarded(place, Watch(), call_buffer=1000) as bus, bus.stream("speak", {"words": 2000}) as call:
        await eventually(lambda: call.done)
        error = (await call.result()).error
    assert error is not None
    assert error.type == "slow_consumer"


def test_the_synchronous_bus_has_middleware_too(server: str, namespace: str) -> None:
    """toolbus.sync.ToolBus takes the same middleware; a tool that nobody serves is answered by it."""

    async def answer(call: ToolCall, next: Next) -> ToolResult:
        return ToolResult(output=f"{call.user} asked {call.name}")

    with sync.ToolBus(server, namespace=namespace, middleware=[answer]) as bus:
        assert bus.call("anything", user="al").output == "al asked anything"
        with bus.stream("anything", user="bo") as call:
            assert list(call) == ["bo asked anything"]
        assert bus.usage() == []


async def test_a_cache_at_the_caller_spares_the_call(place: Place) -> None:
    """A second call with equal arguments is answered here, with the id of its own and no worker; streams hear it in one piece."""
    cache = Cache(ttl=60)
    async with place.worker(speak), guarded(place, cache) as bus:
        before = len(ids)
        first = await bus.call("speak", {"words": 3}, user="al")
        again = await bus.call("speak", {"words": 3}, user="al")
        assert (again.output, again.content, again.success) == (first.output, first.content, True)
        assert (again.meta.attempts, again.meta.worker, again.meta.id == first.meta.id) == (0, "", False)
        async with bus.stream("speak", {"words": 3}, user="al") as call:
            assert [text async for text in call] == ["0 1 2 "]
        assert len(ids) == before + 1
        await bus.call("speak", {"words": 3}, user="bo")
        assert len(ids) == before + 2
