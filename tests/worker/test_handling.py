"""Handlers over every transport, as they run and end: the rarer kinds, threads, and handlers that misbehave."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.contract import Place, out_of_time
from tests.servers import eventually
from toolbus import Blob, ConfigurationError, Progress, ToolError, ToolResult, ToolService, Worker, invocation, tool
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.values.events import Finished, Text
from toolbus.bus.values.results import CallCancelled

pytestmark = pytest.mark.anyio


class Kinds(ToolService):
    """Every shape that invoke may have is tried through subclasses of this."""

    id = "kinds-of-invoke"
    config_params = ("style",)
    effect = "read"
    tools = ({"name": "shaped", "description": "d", "style": "s", "arguments": []},)


class Value(Kinds):
    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return f"{user} {config['style']}"


class Coroutine(Kinds):
    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return f"{user} {config['style']}"


class AsyncGenerator(Kinds):
    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        yield f"{user} "
        yield config["style"]


class Generator(Kinds):
    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        yield f"{user} "
        yield config["style"]


class ReturnsCoroutine(Kinds):
    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        async def later() -> str:
            return f"{user} {config['style']}"

        return later()


class ReturnsGenerator(Kinds):
    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return iter((f"{user} ", config["style"]))


class ReturnsAsyncGenerator(Kinds):
    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        async def later() -> Any:
            yield f"{user} "
            yield config["style"]

        return later()


class TwoArgumentGenerator(Kinds):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:  # type: ignore[override]
        yield f"{invocation().user} "
        yield config["style"]


@pytest.mark.parametrize(
    "service",
    [Value, Coroutine, AsyncGenerator, Generator, ReturnsCoroutine, ReturnsGenerator, ReturnsAsyncGenerator, TwoArgumentGenerator],
    ids=lambda service: service.__name__,
)
async def test_every_shape_of_invoke_answers(place: Place, service: type[Kinds]) -> None:
    """A value, a coroutine, a generator of either colour, and what returns one of them, all answer the same."""
    async with place.serving(service) as bus:
        result = await bus.call("shaped", user="alice")
    assert (result.success, result.output, result.error) == (True, "alice s", None)


@pytest.mark.parametrize(
    ("value", "output", "data"),
    [
        (None, "", None),
        ("", "", None),
        (0, "0", 0),
        (False, "false", False),
        ([], "[]", []),
        ({"a": [1, None]}, '{"a":[1,null]}', {"a": [1, None]}),
        (1.5, "1.5", 1.5),
        ("é\u2028\x00" * 10, "é\u2028\x00" * 10, None),
    ],
)
async def test_values_arrive_as_they_are(place: Place, value: Any, output: Any, data: Any) -> None:
    """Text is output, everything else that JSON can say is data and its text, and nothing is an empty text."""

    @tool(service="values", effect="read", replace=True)
    async def give() -> Any:
        """Give the value."""
        return value

    async with place.serving(give) as bus:
        result = await bus.call("give")
    assert (result.success, result.output, result.data) == (True, output, data)


async def test_a_megabyte_in_every_form(place: Place) -> None:
    """Text, streamed text, data and blobs over the frame limit are split and joined without a byte's difference."""
    text, blob = "ä€😀x" * 120_000, Blob("a/b", bytes(range(256)) * 4_096)

    @tool(service="large", effect="read", replace=True)
    async def streamed():
        """Yield it at once, and more."""
        yield text
        yield blob
        yield "end"
        yield ToolResult(data=[text], output=text[:600_000])

    async with place.serving(streamed) as bus, bus.stream("streamed") as call:
        events = [event async for event in call.events()]
    assert "".join(event.text for event in events if isinstance(event, Text)) == f"{text}end"
    assert [event for event in events if isinstance(event, Blob)] == [blob]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.result.output, finished.result.data, finished.result.content) == (text[:600_000], [text], (blob,))


async def test_an_encodable_item_that_is_not_text(place: Place) -> None:
    """An object that a generator yields arrives as JSON; one that JSON can't say is the handler's failure."""

    @tool(service="items", effect="read", replace=True)
    async def items(bad: bool = False):
        """Yield an object."""
        yield {"a": 1}
        if bad:
            yield object()

    async with place.serving(items) as bus:
        assert (await bus.call("items")).output == '{"a":1}'
        result = await bus.call("items", {"bad": True})
    assert result.error is not None
    assert (result.error.code, result.output) == ("unencodable_result", '{"a":1}')


async def test_an_error_that_json_cannot_say(place: Place) -> None:
    """A ToolError with details of no use to JSON still ends the call, with its type kept."""

    @tool(service="items", effect="read", replace=True)
    async def details() -> str:
        """Fail with an object."""
        raise ToolError("no", type="forbidden", details=object())

    async with place.serving(details) as bus:
        result = await bus.call("details")
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("forbidden", "unencodable_error")


async def test_a_handler_that_swallows_its_cancellation(place: Place) -> None:
    """The caller gets its timeout although the handler goes on; its slot is free only when it ends, its answer is dropped."""
    release, swallowed = asyncio.Event(), asyncio.Event()

    @tool(service="stubborn", effect="read", replace=True)
    async def stubborn() -> str:
        """Ignore being cancelled."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
            await release.wait()
        return "too late"

    async with place.worker(stubborn) as worker, place.bus() as bus:
        result = await out_of_time(bus, "stubborn")
        assert result.error is not None
        assert (result.error.type, result.output) == ("deadline_exceeded", None)
        await asyncio.wait_for(swallowed.wait(), 5)
        assert worker.statistics()["running"] == 1
        release.set()
        await eventually(lambda: worker.statistics()["running"] == 0)


async def test_a_generator_that_swallows_its_cancellation(place: Place) -> None:
    """An async generator that goes on yielding after its cancellation is closed, and the worker goes on."""

    @tool(service="stubborn", effect="read", replace=True)
    async def babble():
        """Ignore being cancelled, once."""
        while True:
            try:
                yield "more "
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                yield "never heard"

    async with place.worker(babble) as worker, place.bus() as bus:
        for _ in range(2):
            result = await out_of_time(bus, "babble")
            assert result.error is not None
            assert (result.error.type, result.output) == ("deadline_exceeded", "more ")
        await eventually(lambda: worker.statistics()["running"] == 0)


class Blank(str):
    """Text of a class of its own."""

    __slots__ = ()


async def passed_on(call: ToolCall, next: Next) -> ToolResult:
    """Do nothing of its own."""
    return await next(call)


@pytest.mark.parametrize("middleware", [(), (passed_on,)], ids=["bare", "within-middleware"])
@pytest.mark.parametrize("item", ["", None, Blank(), Progress(1), Blob("x/y", b"")], ids=["text", "none", "text-class", "progress", "blob"])
async def test_an_endless_generator_gives_way(place: Place, item: Any, middleware: Any) -> None:
    """An async generator that never awaits ends at its deadline, another call is answered meanwhile, and its worker can leave."""
    reached = asyncio.Event()

    @tool(service="endless", effect="read", replace=True)
    async def endless() -> AsyncIterator[Any]:
        """Yield the same thing for ever."""
        # A test that fails ends all the same.
        until = time.monotonic() + 20
        while time.monotonic() < until:
            reached.set()
            yield item

    @tool(service="endless", effect="read", replace=True)
    async def beside() -> str:
        """Answer at once."""
        return "beside"

    began = time.monotonic()
    async with Worker([endless, beside], settings=place.settings, middleware=middleware) as worker, place.bus() as bus:
        running = asyncio.create_task(bus.call("endless", timeout=2))
        await asyncio.wait_for(reached.wait(), 10)
        assert (await bus.call("beside", timeout=15)).output == "beside"
        error = (await running).error
        assert error is not None
        assert error.type in {"deadline_exceeded", "tool_error"}
        await eventually(lambda: worker.statistics()["running"] == 0)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("item", ["", None], ids=["text", "none"])
async def test_an_endless_plain_generator_gives_way(place: Place, item: Any) -> None:
    """A plain generator, in its thread, leaves the loop to others as well."""

    @tool(service="endless", effect="read", replace=True)
    def plain() -> Iterator[Any]:
        """Yield the same thing for ever."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            yield item

    @tool(service="endless", effect="read", replace=True)
    async def beside() -> str:
        """Answer at once."""
        return "beside"

    async with place.worker(plain, beside) as worker, place.bus() as bus:
        async with bus.stream("plain", timeout=30):
            await eventually(lambda: worker.statistics()["running"] == 1)
            assert (await bus.call("beside", timeout=15)).output == "beside"
            assert worker.statistics()["running"] == 1
        await eventually(lambda: worker.statistics()["running"] == 0)


async def test_a_thread_keeps_its_slot_until_it_ends(place: Place) -> None:
    """A plain handler can't be stopped: its caller is answered, and no other call takes its slot meanwhile."""
    release, running = threading.Event(), 0
    most = 0

    @tool(service="threaded", effect="read", replace=True)
    def busy(wait: bool) -> str:
        """Block a thread."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if wait:
            release.wait(10)
        running -= 1
        return "done"

    async with place.worker(busy, concurrency=1) as worker, place.bus() as bus:
        result = await out_of_time(bus, "busy", {"wait": True})
        assert result.error is not None
        assert result.error.type == "deadline_exceeded"
        second = asyncio.create_task(bus.call("busy", {"wait": False}))
        await eventually(lambda: bus.statistics()["published"] == 2)
        assert worker.statistics()["free"] == 0
        release.set()
        assert (await second).output == "done"
    assert most == 1


async def test_a_plain_generator_ends_when_its_caller_leaves(place: Place) -> None:
    """A generator in a thread is closed, with its finally, once nobody reads it."""
    closed = threading.Event()

    @tool(service="threaded", effect="read", replace=True)
    def endless() -> Iterator[str]:
        """Produce for ever."""
        try:
            while True:
                yield "x"
        finally:
            closed.set()

    async with place.worker(endless) as worker, place.bus() as bus:
        async with bus.stream("endless") as call:
            async for _ in call:
                break
        await eventually(closed.is_set)
        await eventually(lambda: worker.statistics()["running"] == 0)


async def test_progress_and_text_from_a_thread(place: Place) -> None:
    """invocation() works in the worker's threads: progress reaches the caller, the call's fields are there."""

    @tool(service="threaded", effect="read", replace=True)
    def work() -> str:
        """Tell how it goes."""
        here = invocation()
        for step in range(3):
            here.progress(step, 3, here.user)
        return f"{here.tool} {here.attempt} {here.remaining > 0}"

    async with place.serving(work) as bus, bus.stream("work", user="alice") as call:
        events = [event async for event in call.events()]
    assert [event for event in events if isinstance(event, Progress)] == [Progress(step, 3, "alice") for step in range(3)]
    assert (await call.result()).output == "work 1 True"


@pytest.mark.parametrize("way", ["cancel", "deadline"])
async def test_a_nested_call_from_a_thread_ends_with_its_caller(place: Place, way: str) -> None:
    """A thread that waits for a nested call is released when nobody waits for it, and what it called is cancelled."""
    running, stopped = asyncio.Event(), asyncio.Event()
    told: list[BaseException] = []

    @tool(service="inner-tests", effect="read", replace=True)
    async def inner() -> str:
        """Hang."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    @tool(service="outer-tests", effect="read", replace=True)
    def outer() -> str:
        """Wait in a thread for another tool."""
        try:
            return invocation().call_sync("inner").output or ""
        except BaseException as error:
            told.append(error)
            raise

    async with place.worker(inner, outer) as worker, place.bus() as bus:
        async with bus.stream("outer", timeout=30.0 if way == "cancel" else 1.5) as call:
            await asyncio.wait_for(running.wait(), 5)
            if way == "deadline":
                assert not (await call.result()).success
        await asyncio.wait_for(stopped.wait(), 5)
        await eventually(lambda: worker.statistics()["running"] == 0)
    # At the deadline the nested call's own may come first: then its failure is a value.
    assert [type(error) for error in told] in ([CallCancelled], [] if way == "deadline" else [CallCancelled])


async def test_call_sync_in_the_event_loop_is_refused(place: Place) -> None:
    """A coroutine that would block its own loop is told what to use instead."""

    @tool(service="outer-tests", effect="read", replace=True)
    async def wrong() -> str:
        """Block the loop."""
        return invocation().call_sync("wrong").output or ""

    async with place.serving(wrong) as bus:
        result = await bus.call("wrong")
    assert result.error is not None
    assert "await" in result.error.message


async def test_a_worker_may_serve_again(place: Place) -> None:
    """A worker that has drained can be started once more; starting it twice is a clear error."""
    worker = place.worker(Value)
    for _ in range(2):
        async with worker, place.bus() as bus:
            await bus.wait_for_tool("shaped", timeout=5)
            assert (await bus.call("shaped", user="al")).output == "al s"
            with pytest.raises(ConfigurationError, match="already serves"):
                await worker.__aenter__()
        assert worker.statistics()["running"] == 0


async def test_arguments_are_checked_again_in_the_worker(place: Place) -> None:
    """The lower tier and static tools bypass the caller's check; a worker's own check names the place all the same."""

    @tool(service="checked", effect="read", replace=True)
    async def strict(n: int) -> int:
        """Take a number."""
        return n

    async with place.serving(strict) as bus:
        known = bus.tools["strict"]
        object.__setattr__(known, "preparer", type("Lenient", (), {"prepare": staticmethod(lambda arguments, _=None: arguments)}))
        result = await bus.call("strict", {"n": "three"})
    assert result.error is not None
    assert result.error.type == "invalid_arguments"
    assert "$.n" in result.error.message
