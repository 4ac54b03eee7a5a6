"""Middleware around handlers, over every transport."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract import Place
from tests.middleware.watching import Watch
from tests.servers import eventually
from toolbus import Blob, ConfigurationError, Retry, ToolBus, ToolError, ToolResult, ToolService, Worker, invocation, tool
from toolbus.bus.middleware import Next, ToolCall, only

pytestmark = pytest.mark.anyio


class Shapes(ToolService):
    """Every shape of handler, by the argument ``as``."""

    id = "shapes"
    config_params = ("style",)
    effect = "read"
    tools = ({"name": "shape", "description": "d", "style": "s", "arguments": []},)
    retry = None

    def __init__(self) -> None:
        self.runs = 0

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        self.runs += 1
        kind = arguments.get("as")
        if kind == "text":
            yield "one "
            yield "two"
        elif kind == "blobs":
            yield "see "
            yield Blob("text/plain", b"1")
            yield {"a": 1}
            yield ToolResult(data=[1], content=(Blob("text/plain", b"2"),))
        elif kind == "error":
            yield "partly "
            raise ToolError("no", type="forbidden", code="c")
        elif kind == "crash":
            raise ValueError("broken")
        elif kind == "failed":
            yield ToolResult.fail("as a value")
        else:
            yield ToolResult.ok({"arguments": arguments, "config": config, "user": user})


@tool(service="shapes-in-threads", effect="read")
def threaded() -> Iterator[str]:
    """Run in a thread."""
    yield f"{invocation().tool} "
    yield threading.current_thread().name.partition("_")[0]


@tool(service="shapes-in-threads", effect="read")
def valued() -> str:
    """Return from a thread."""
    return "value"


async def test_middleware_sees_the_call_and_its_whole_answer(place: Place) -> None:
    """Every shape of handler reaches its caller as without middleware, and the middleware sees the answer whole."""
    watch = Watch()
    async with Worker([Shapes, threaded, valued], settings=place.settings, middleware=[watch]), place.bus() as bus:
        async with bus.stream("shape", {"as": "text"}, user="al", session="s") as call:
            assert [text async for text in call] in (["one ", "two"], ["one two"])
        assert (await call.result()).output == "one two"
        seen = watch.calls[0]
        assert (seen.id, seen.tool, seen.service, seen.name) == (call.id, "shape", "shapes", "shape")
        assert (seen.user, seen.session, seen.effect, seen.side, seen.attempt) == ("al", "s", "read", "handler", 1)
        assert (seen.arguments, seen.config) == ({"as": "text"}, {"style": "s"})
        assert watch.results[0].output == "one two"
        blobs = await bus.call("shape", {"as": "blobs"})
        assert (blobs.output, blobs.data, [blob.data for blob in blobs.content]) == ('see {"a":1}', [1], [b"1", b"2"])
        assert (watch.results[1].output, [blob.data for blob in watch.results[1].content]) == ('see {"a":1}', [b"1", b"2"])
        assert (await bus.call("threaded")).output == "threaded toolbus-handler"
        assert (await bus.call("valued")).output == "value"
        assert [result.output for result in watch.results[2:]] == ["threaded toolbus-handler", "value"]
        await bus.service("shapes").call("bo", {"style": "x"}, {})
        assert (watch.calls[-1].tool, watch.calls[-1].name) == ("", "shapes")


async def test_failures_are_values_for_middleware_and_unchanged_for_callers(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """An exception, a ToolError after some text and a failed result pass as results; a crash keeps its traceback."""
    watch = Watch()
    async with Worker(Shapes, settings=place.settings, middleware=[watch]), place.bus() as bus:
        refused = await bus.call("shape", {"as": "error"})
        assert refused.error is not None
        assert (refused.error.type, refused.error.code, refused.output) == ("forbidden", "c", "partly ")
        assert (watch.results[0].error, watch.results[0].output) == (refused.error, "partly ")
        with caplog.at_level(logging.ERROR):
            crashed = await bus.call("shape", {"as": "crash"})
        assert crashed.error is not None
        assert (crashed.error.code, crashed.error.message) == ("ValueError", "broken")
        assert "Traceback" in caplog.text
        failed = await bus.call("shape", {"as": "failed"})
        assert failed.error is not None
        assert failed.error.message == "as a value"


async def test_the_first_middleware_is_the_outermost(place: Place) -> None:
    """Each goes through those after it; one may answer by itself, change the arguments, or the result."""
    order: list[str] = []

    def named(name: str) -> Any:
        async def around(call: ToolCall, next: Next) -> ToolResult:
            order.append(f"{name} in")
            result = await next(call)
            order.append(f"{name} out")
            return result

        return around

    async def change(call: ToolCall, next: Next) -> ToolResult:
        if call.arguments.get("as") == "answer":
            return ToolResult(output="its own")
        result = await next(call.with_arguments({**call.arguments, "more": 1}))
        return ToolResult(data=result.data, output="told") if result.data else result

    service = Shapes()
    async with Worker(service, settings=place.settings, middleware=[named("a"), named("b"), change]), place.bus() as bus:
        result = await bus.call("shape", {"n": 1}, user="al")
        assert (result.output, result.data["arguments"]) == ("told", {"n": 1, "more": 1})
        assert order == ["a in", "b in", "b out", "a out"]
        async with bus.stream("shape", {"as": "answer"}) as call:
            assert "".join([text async for text in call]) == "its own"
        assert service.runs == 1


async def test_a_run_can_be_repeated_until_something_was_said(place: Place) -> None:
    """next() may be called again, unless the text of the first run is on its way."""

    async def twice(call: ToolCall, next: Next) -> ToolResult:
        first = await next(call)
        return await next(call) if first.error is not None or call.arguments.get("as") == "text" else first

    service = Shapes()
    async with Worker(service, settings=place.settings, middleware=[twice]), place.bus() as bus:
        assert (await bus.call("shape", {"as": "crash"})).error is not None
        assert service.runs == 2
        spoken = await bus.call("shape", {"as": "text"})
        assert spoken.error is not None
        assert (spoken.error.code, spoken.output) == ("bad_middleware", "one two")


async def test_middleware_that_fails_fails_its_call_alone(place: Place) -> None:
    """An exception of the middleware's own, and an answer that is no result, are errors of that call."""

    async def broken(call: ToolCall, next: Next) -> Any:
        if call.arguments.get("how") == "raise":
            raise KeyError("mine")
        if call.arguments.get("how") == "none":
            return None
        return await next(call)

    async with Worker(Shapes, settings=place.settings, middleware=[broken]), place.bus() as bus:
        raised, nothing = await bus.call("shape", {"how": "raise"}), await bus.call("shape", {"how": "none"})
        assert raised.error is not None
        assert nothing.error is not None
        assert (raised.error.code, nothing.error.code) == ("KeyError", "bad_middleware")
        assert (await bus.call("shape")).success


async def test_retries_and_cancellation_work_as_without(place: Place) -> None:
    """A crash is tried again where the service says so, and a cancelled call cancels handler and middleware."""
    began, ended = asyncio.Event(), asyncio.Event()
    watch = Watch()

    class Flaky(ToolService):
        id = "flaky-within"
        effect = "read"
        retry = Retry(attempts=3, delay=0.01)
        tools = ({"name": "flake", "description": "d", "arguments": []},)

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            if arguments.get("hang"):
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()
            if invocation().attempt < 3:
                raise RuntimeError("not yet")
            return "at last"

    async with Worker(Flaky, settings=place.settings, middleware=[watch]), place.bus() as bus:
        assert (await bus.call("flake")).output == "at last"
        assert [call.attempt for call in watch.calls] == [1, 2, 3]
        async with bus.stream("flake", {"hang": True}) as call:
            await asyncio.wait_for(began.wait(), 5)
            call.cancel()
        await asyncio.wait_for(ended.wait(), 5)


async def test_some_tools_only(place: Place) -> None:
    """only() applies a middleware to the tools it names."""
    watch = Watch()
    async with Worker([Shapes, valued], settings=place.settings, middleware=[only(watch, tools=["valued"])]), place.bus() as bus:
        await bus.call("shape")
        await bus.call("valued")
    assert [call.name for call in watch.calls] == ["valued"]


@pytest.mark.parametrize("wrong", [7, Watch])
def test_what_is_no_middleware_is_refused_at_once(wrong: Any) -> None:
    """Something that can't be called, or a class in place of its instance, is a clear error."""
    with pytest.raises(ConfigurationError, match="is no middleware"):
        Worker(Shapes, url="memory://", middleware=[wrong])
    with pytest.raises(ConfigurationError, match="is no middleware"):
        ToolBus("memory://", middleware=[wrong])


async def test_a_worker_drains_with_middleware(place: Place) -> None:
    """Leaving the worker waits for a call that is still in its middleware."""
    inside, release = asyncio.Event(), asyncio.Event()

    async def slow(call: ToolCall, next: Next) -> ToolResult:
        result = await next(call)
        inside.set()
        await release.wait()
        return result

    async with place.bus() as bus:
        worker = Worker(valued, settings=place.settings, middleware=[slow])
        await worker.__aenter__()
        await bus.wait_for_tool("valued")
        call = asyncio.ensure_future(bus.call("valued"))
        await inside.wait()
        draining = asyncio.ensure_future(worker.drain())
        await eventually(lambda: "valued" not in bus.tools)
        release.set()
        await draining
        assert (await call).output == "value"
