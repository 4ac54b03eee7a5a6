"""Handling: handlers of every kind, within middleware."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.servers import eventually
from tests.virtual_time import NOW
from tests.worker.unit.fakes import Bench, echo, hold
from toolbus import Blob, ErrorInfo, ToolResult, tool
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.worker.transitions import RunState

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True, isolation="process")
def apart(number: int) -> str:
    """Run in a child process."""
    return str(number)


async def test_middleware_may_call_a_handler_again_within_one_run(seen: list[Any]) -> None:
    """``once`` work enters once, and the second result is the answer."""

    async def twice(call: ToolCall, following: Next) -> ToolResult:
        await following(call)
        return await following(call)

    @tool(service="unit", replace=True, effect="once")
    async def count() -> str:
        """Count its calls."""
        seen.append(len(seen))
        return str(len(seen))

    end = await Bench(count, middleware=(twice,)).run("count")
    assert (end.frame.response, seen) == ("2", [0, 1])


async def test_middleware_that_gives_a_handler_up_stops_it() -> None:
    """The handler is told, and the middleware's own result is the answer."""

    async def impatient(call: ToolCall, following: Next) -> ToolResult:
        try:
            async with asyncio.timeout(1):
                return await following(call)
        except TimeoutError:
            return ToolResult(output="gave up")

    bench = Bench(hold, middleware=(impatient,))
    held = await bench.begin("hold")
    await asyncio.sleep(1.1)
    await bench.settle()
    assert [end.frame.response for end in bench.broker.ends] == ["gave up"]
    assert str(held.stopped) == "cancelled: the middleware around the handler gave it up"


async def test_plain_functions_and_generators_run_in_threads() -> None:
    """Their results and items arrive as those of coroutines do."""

    @tool(service="unit", replace=True)
    def plain() -> str:
        """Return."""
        return "plain"

    @tool(service="unit", replace=True)
    def items() -> Iterator[str]:
        """Yield."""
        yield "a"
        yield "b"

    bench = Bench(plain, items)
    for name in ("plain", "items"):
        bench.slots.start(bench.delivery(name))
    await eventually(lambda: len(bench.broker.ends) == 2)
    assert "plain" in {end.frame.response for end in bench.broker.ends}
    texts = [text for frame in bench.broker.frames for text in (frame.texts or [frame.response])]
    assert "".join(filter(None, texts)) == "ab"
    await bench.settle()
    assert bench.slots.running == 0


@pytest.mark.parametrize("effect", ["", "once"])
async def test_an_isolated_tool_runs_in_the_pool(effect: str, seen: list[Any]) -> None:
    """The pool is given the request and its limits; ``once`` work is marked when a process is ready, and refused arguments take none."""
    bench = Bench(apart)
    asked: list[dict[str, Any]] = []

    async def pooled(made: Any, request: Any, *, begin: Any, **limits: Any) -> AsyncIterator[str]:
        asked.append({"name": made.name, "id": request.id, **limits})
        if begin is not None:
            seen.append(bench.slots._runs["run-1"].state)
            await begin()
            seen.append(bench.slots._runs["run-1"].state)
        yield "apart"

    bench.slots.isolation.run = pooled  # type: ignore[method-assign, assignment]
    await bench.run("apart", {"number": 1}, attempt=2, effect=effect)
    assert asked == [{"name": "apart", "id": "call-1", "attempt": 2, "deadline": NOW + 10.0}]
    assert seen == ([RunState.RUNNING, RunState.ENTERED] if effect else [])
    bench.broker.ends.clear()
    end = await bench.run("apart", {"number": "one"}, effect=effect)
    assert end.frame.error is not None
    assert end.frame.error.type == "invalid_arguments"
    assert len(asked) == 1


async def test_middleware_that_goes_on_after_a_stop_does_not_reach_the_handler(seen: list[Any]) -> None:
    """The caller may know that the handler was not called; the middleware is told why."""
    told: list[ErrorInfo | None] = []

    async def stubborn(call: ToolCall, following: Next) -> ToolResult:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        result = await following(call)
        told.append(result.error)
        return result

    bench = Bench(hold, middleware=(stubborn,))
    held = await bench.begin("hold")
    held.cancel()
    await bench.settle()
    assert (seen, bench.broker.errors(), bench.slots.running) == ([], [("cancelled", "")], 0)
    [error] = told
    assert error is not None
    assert (error.type, error.message) == ("cancelled", str(held.stopped))


async def test_middleware_sees_the_call_and_may_change_its_arguments() -> None:
    """It is told the digest of what runs, and the tallies of the namespace; a failure is a result with the error of the caller."""
    calls: list[ToolCall] = []
    results: list[ToolResult] = []

    async def louder(call: ToolCall, following: Next) -> ToolResult:
        calls.append(call)
        results.append(await following(call.with_arguments({"text": f"{call.arguments['text']}!"})))
        return results[-1]

    @tool(service="unit", replace=True)
    async def burst(text: str) -> str:
        """Fail."""
        raise ValueError(text)

    bench = Bench(echo, burst, middleware=(louder,))
    assert (await bench.run("echo", {"text": "hi"})).frame.response == "hi!"
    assert calls[0].digest == bench.slots._served["unit"].publication.digest
    assert id(calls[0].tallies) == id(bench.broker.tallies)
    bench.broker.ends.clear()
    end = await bench.run("burst", {"text": "broken"})
    assert results[1].error == end.frame.error == ErrorInfo("tool_error", "ValueError", "broken!", origin="tool")


@pytest.mark.parametrize(
    ("ordered", "state", "cache"), [(False, "", True), (True, "", False), (False, "token", False), (True, "token", False)]
)
async def test_middleware_is_told_everything_of_a_call(ordered: bool, state: str, cache: bool) -> None:
    """A session's state in its worker is in no field of the request, so such a call is never answered from a cache."""
    calls: list[ToolCall] = []

    async def watching(call: ToolCall, following: Next) -> ToolResult:
        calls.append(call)
        return await following(call)

    @tool(service="unit", replace=True, cache=True)
    async def look(where: str) -> str:
        """Look."""
        return where

    bench = Bench(look, middleware=(watching,))
    told = {"user": "u", "session": "s", "metadata": {"m": 1}, "idempotency_key": "k", "effect": "read"}
    delivery = bench.delivery("look", {"where": "here"}, attempt=2, ordered=ordered, state=state, **told)
    bench.slots.start(delivery)
    await bench.settle()
    [call] = calls
    digest = bench.slots._served["unit"].publication.digest
    assert {name: getattr(call, name) for name in told} == told
    assert (call.id, call.tool, call.service, call.arguments) == (delivery.request.id, "look", "unit", {"where": "here"})
    assert (call.side, call.attempt, call.digest, call.cache) == ("handler", 2, digest, cache)


@pytest.mark.parametrize("kind", ["both", "str", "Blob"])
async def test_middleware_can_not_run_a_handler_again_whose_text_is_on_its_way(kind: str) -> None:
    """A second next() after streamed output is bad_middleware; the first one returns what the handler yielded and failed with."""
    results: list[ToolResult] = []

    async def twice(call: ToolCall, following: Next) -> ToolResult:
        results.append(await following(call))
        return await following(call)

    @tool(service="unit", replace=True)
    async def break_off() -> AsyncIterator[str | Blob]:
        """Yield, and fail."""
        for item in ("a", Blob("a/b", b"1")):
            if kind in {"both", type(item).__name__}:
                yield item
        raise ValueError("broken")

    end = await Bench(break_off, middleware=(twice,)).run("break_off")
    assert end.frame.error is not None
    assert (end.frame.error.code, end.frame.error.message) == (
        "bad_middleware",
        "next() can't run a handler again whose text is on its way",
    )
    error = ErrorInfo("tool_error", "ValueError", "broken", origin="tool")
    output, content = None if kind == "Blob" else "a", () if kind == "str" else (Blob("a/b", b"1"),)
    assert results == [ToolResult(success=False, output=output, error=error, content=content)]


@pytest.mark.parametrize("instead", [False, True])
async def test_a_failure_that_middleware_lets_pass_is_the_handlers_own(instead: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged with its traceback when middleware lets it pass, and not when middleware answers instead."""

    async def passing(call: ToolCall, following: Next) -> ToolResult:
        result = await following(call)
        return ToolResult(output="instead") if instead else result

    @tool(service="unit", replace=True)
    async def burst() -> str:
        """Fail."""
        raise ValueError("broken")

    end = await Bench(burst, middleware=(passing,)).run("burst")
    assert end.frame.response == ("instead" if instead else None)
    assert [record.levelname for record in caplog.records] == ([] if instead else ["ERROR"])
    assert [bool(record.exc_info) for record in caplog.records] == ([] if instead else [True])


@pytest.mark.parametrize(
    ("made", "response", "content"),
    [
        (lambda seen: seen, None, ()),
        (lambda seen: ToolResult(output="ab", content=(*seen.content, Blob("a/b", b"2"))), None, (b"2",)),
        (lambda seen: ToolResult(output="other", content=seen.content), "other", ()),
        (lambda seen: ToolResult(output="ab", content=(Blob("a/b", b"2"),)), None, (b"2",)),
        (lambda seen: ToolResult(output="ab"), None, ()),
    ],
)
async def test_what_was_streamed_is_not_sent_again(made: Any, response: str | None, content: tuple[bytes, ...]) -> None:
    """Of a result whose parts were streamed, only what middleware adds or changes is sent."""

    async def changing(call: ToolCall, following: Next) -> ToolResult:
        seen: ToolResult = await following(call)
        changed: ToolResult = made(seen)
        return changed

    @tool(service="unit", replace=True)
    async def items() -> AsyncIterator[str | Blob]:
        """Yield."""
        yield "a"
        yield Blob("a/b", b"1")
        yield "b"

    end = await (bench := Bench(items, middleware=(changing,))).run("items")
    assert end.frame.response == response
    assert [frame.blob.data for frame in bench.broker.frames if frame.blob is not None] == [b"1", *content]


@pytest.mark.parametrize("threaded", [False, True])
async def test_middleware_sees_what_a_generator_yielded(threaded: bool) -> None:
    """The caller is sent each item once, and the middleware may ask how many bytes that were."""
    outputs: list[str | None] = []
    sizes: list[int] = []

    async def watching(call: ToolCall, following: Next) -> ToolResult:
        sizes.append(call.delivered())
        result = await following(call)
        outputs.append(result.output)
        sizes.append(call.delivered())
        return result

    @tool(service="unit", replace=True)
    async def items() -> AsyncIterator[str | Blob]:
        """Yield."""
        yield "a"
        yield "é"
        yield Blob("a/b", b"123")

    @tool(service="unit", replace=True)
    def threaded_items() -> Iterator[str | Blob]:
        """Yield."""
        yield "a"
        yield "é"
        yield Blob("a/b", b"123")

    bench = Bench(items, threaded_items, middleware=(watching,))
    bench.slots.start(bench.delivery("threaded_items" if threaded else "items"))
    await eventually(lambda: bench.broker.ends)
    await bench.settle()
    texts = [text for frame in bench.broker.frames if frame.kind == "text" for text in (frame.texts or [frame.response])]
    assert (texts, outputs, bench.broker.ends[0].frame.response) == (["a", "é"], ["aé"], None)
    assert sizes == [0, 1 + 2 + 3]


async def test_a_plain_function_may_return_a_coroutine() -> None:
    """It is awaited in the event loop."""

    async def later() -> str:
        await asyncio.sleep(1)
        return "later"

    @tool(service="unit", replace=True)
    def promise() -> Any:
        """Return a coroutine."""
        return later()

    bench = Bench(promise)
    bench.slots.start(bench.delivery("promise"))
    await eventually(lambda: bench.broker.ends)
    assert bench.broker.ends[0].frame.response == "later"


async def test_each_slot_has_a_thread_of_its_own() -> None:
    """Plain functions never wait for each other's threads, however many slots there are."""
    slots = 40
    barrier = threading.Barrier(slots)

    @tool(service="unit", replace=True)
    def meet() -> str:
        """Wait for the others."""
        barrier.wait(5)
        return "met"

    bench = Bench(meet, concurrency=slots)
    bench.slots.start_all([bench.delivery("meet") for _ in range(slots)])
    await eventually(lambda: len(bench.broker.ends) == slots)
    assert {end.frame.response for end in bench.broker.ends} == {"met"}


# -- threads that can't be stopped --------------------------------------------------------------------


class Blocking:
    """Handlers that hold their threads until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.blocked = threading.Event()

        @tool(service="unit", replace=True)
        def block() -> str:
            """Block."""
            self.blocked.set()
            self.released.wait(10)
            return "released"

        @tool(service="unit", replace=True)
        def block_items() -> Iterator[str]:
            """Yield, and block."""
            yield "a"
            self.blocked.set()
            self.released.wait(10)
            yield "b"

        self.tools = block, block_items


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    """Provide blocking handlers, and release them at the end."""
    blocking = Blocking()
    yield blocking
    blocking.released.set()


@pytest.mark.parametrize("name", ["block", "block_items"])
async def test_a_thread_holds_the_slot_of_a_stopped_run(blocking: Blocking, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """However often the run is told to stop; when the thread ends, nothing more is sent or logged."""
    bench = Bench(*blocking.tools)
    held = await bench.begin(name)
    await eventually(blocking.blocked.is_set)
    for _ in range(3):
        held.cancel()
        await bench.settle()
    assert (bench.slots.running, held.stuck, bench.broker.errors()) == (1, True, [("cancelled", "")])
    blocking.released.set()
    await eventually(lambda: bench.slots.running == 0)
    assert (len(bench.broker.ends), held.state) == (1, RunState.ENDED)
    del held
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_an_abandoned_run_does_not_wait_for_its_thread(blocking: Blocking) -> None:
    """The worker of a stopped run that holds its thread can end."""
    bench = Bench(*blocking.tools)
    held = await bench.begin("block")
    await eventually(blocking.blocked.is_set)
    held.cancel()
    await bench.settle()
    task = held.abandon()
    await bench.settle()
    assert task.done()
    assert bench.slots.running == 0
