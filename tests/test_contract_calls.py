"""Calls as users make them, over every transport: values, streams, failures, limits."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import Blob, ConfigurationError, Progress, ToolError, ToolResult, ToolService, invocation, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.envelope import Frame, encode, join_frames
from toolbus.bus.values.events import Finished, Started, Text

pytestmark = pytest.mark.anyio


@tool(service="kinds", effect="read")
async def coroutine(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="kinds", effect="read")
async def stream(n: int):
    """Count."""
    for number in range(n):
        yield f"{number} "


@tool(service="kinds", effect="read")
def plain(left: int, right: int = 1) -> dict[str, int]:
    """Add in a thread."""
    return {"sum": left + right}


@tool(service="kinds", effect="read")
def plain_stream(n: int):
    """Count in a thread, with progress."""
    for number in range(n):
        invocation().progress(number, n, "counting")
        yield f"{number} "


@tool(service="kinds", effect="read")
async def rich():
    """Everything a handler may yield."""
    yield "text "
    yield Progress(1, 2, "half")
    yield Blob("image/png", b"\x89PNG" * 50_000)
    yield ToolResult.ok({"answer": 42}, output="the end")


@tool(service="kinds", effect="read")
async def nothing() -> None:
    """Return nothing."""


@tool(service="kinds", effect="read")
async def bulky(text: int = 0, data: int = 0) -> Any:
    """Return a long text, or much data."""
    return "é" * text if text else list(range(data))


@tool(service="kinds", effect="read")
async def too_late():
    """Yield more after the result."""
    yield ToolResult.ok(1)
    yield "more"


@pytest.mark.parametrize(
    ("name", "arguments", "output", "data"),
    [
        ("coroutine", {"text": "hällo"}, "hällo", None),
        ("stream", {"n": 3}, "0 1 2 ", None),
        ("plain", {"left": 2}, '{"sum":3}', {"sum": 3}),
        ("plain_stream", {"n": 3}, "0 1 2 ", None),
        ("nothing", {}, "", None),
        ("bulky", {"text": 300_000}, "é" * 300_000, None),
        ("bulky", {"data": 100_000}, json.dumps([*range(100_000)], separators=(",", ":")), list(range(100_000))),
    ],
)
async def test_every_kind_of_handler_answers(place: Place, name: str, arguments: dict[str, Any], output: Any, data: Any) -> None:
    """Coroutines, generators and plain functions answer with text, or with data and its JSON text, however long."""
    async with place.serving(coroutine) as bus:
        result = await bus.call(name, arguments)
    assert (result.success, result.output, result.data, result.error) == (True, output, data, None)
    assert result.meta.attempts == 1
    assert result.meta.worker


async def test_a_stream_tells_everything_in_order(place: Place) -> None:
    """Events come in the handler's order: started, text, progress, blob, and one end."""
    async with place.serving(coroutine) as bus, bus.stream("rich") as call:
        events = [event async for event in call.events()]
    assert [type(event) for event in events] == [Started, Text, Progress, Blob, Finished]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.result.output == "the end"
    assert finished.result.data == {"answer": 42}
    assert finished.result.content == (Blob("image/png", b"\x89PNG" * 50_000),)


async def test_text_arrives_while_the_tool_still_runs(place: Place) -> None:
    """The first piece is there before the handler goes on."""
    go_on = asyncio.Event()

    @tool(service="live", effect="read", replace=True)
    async def slow():
        """Wait between two pieces."""
        yield "first"
        await go_on.wait()
        yield "second"

    async with place.serving(slow) as bus, bus.stream("slow") as call:
        pieces = []
        async for text in call:
            pieces.append(text)
            go_on.set()
    assert pieces == ["first", "second"]


async def test_a_plain_value_streams_as_one_piece(place: Place) -> None:
    """Iterating over a call of a tool that returns a value yields it once."""
    async with place.serving(coroutine) as bus, bus.stream("coroutine", {"text": "one"}) as call:
        assert [text async for text in call] == ["one"]
        assert (await call.result()).output == "one"


async def test_results_of_concurrent_calls_are_never_mixed_up(place: Place) -> None:
    """Three hundred calls at once each get their own answer."""
    async with place.serving(coroutine, concurrency=50) as bus:
        results = await asyncio.gather(*(bus.call("coroutine", {"text": str(number)}) for number in range(300)))
    assert [result.output for result in results] == [str(number) for number in range(300)]


class Failing(ToolService):
    """Fails in every way."""

    id = "failing"
    effect = "read"

    @tool
    async def crash(self) -> str:
        """Raise."""
        raise ValueError("broken pipe")

    @tool
    async def refuse(self) -> str:
        """Raise with a type of its own."""
        raise ToolError("slow down", type="rate_limited", code="quota", retryable=True, retry_after=3.0, details={"left": 0})

    @tool
    async def partial(self):
        """Fail after some text."""
        yield "so far so good"
        raise ValueError("and then not")

    @tool
    def leave(self) -> str:
        """Try to end the worker."""
        raise SystemExit(3)

    @tool
    async def unencodable(self) -> object:
        """Return what JSON can't say."""
        return object()

    @tool
    async def suicidal(self) -> str:
        """Cancel itself."""
        raise asyncio.CancelledError

    @tool
    async def failed_result(self) -> ToolResult:
        """Return a failure."""
        return ToolResult.fail("no luck")

    @tool
    async def late(self):
        """Yield after the result."""
        yield ToolResult.ok(1)
        yield "more"


@pytest.mark.parametrize(
    ("name", "kind", "code", "words"),
    [
        ("crash", "tool_error", "ValueError", "broken pipe"),
        ("refuse", "rate_limited", "quota", "slow down"),
        ("partial", "tool_error", "ValueError", "and then not"),
        ("leave", "tool_error", "SystemExit", "exit"),
        ("unencodable", "tool_error", "unencodable_result", "JSON"),
        ("suicidal", "tool_error", "CancelledError", "within"),
        ("failed_result", "tool_error", "", "no luck"),
        ("late", "tool_error", "bad_stream", "after"),
    ],
)
async def test_a_failure_is_a_value_and_the_worker_goes_on(place: Place, name: str, kind: str, code: str, words: str) -> None:
    """Every mistake of a handler becomes its caller's error, and the next call is served."""
    async with place.serving(Failing, coroutine) as bus:
        result = await bus.call(name)
        assert not result.success
        assert result.error is not None
        assert (result.error.type, result.error.code) == (kind, code)
        assert words in result.error.message
        assert (await bus.call("coroutine", {"text": "alive"})).output == "alive"
        if name == "partial":
            assert result.output == "so far so good"
        if name == "refuse":
            assert (result.error.retryable, result.error.retry_after, result.error.details) == (True, 3.0, {"left": 0})


async def test_plain_iteration_raises_for_a_failed_tool(place: Place) -> None:
    """A short answer can't pass for a whole one: iterating raises, events() does not."""
    async with place.serving(Failing) as bus:
        with pytest.raises(ToolError, match="and then not"):  # noqa: PT012 - a user's loop is what is tested
            async with bus.stream("partial") as call:
                async for _ in call:
                    pass
        async with bus.stream("partial") as call:
            assert isinstance([event async for event in call.events()][-1], Finished)


async def test_bad_arguments_are_named_before_anything_is_published(place: Place) -> None:
    """A wrong or missing argument names its place, and no worker hears of it."""
    async with place.serving(coroutine) as bus:
        before = bus.statistics()["published"]
        large = await bus.call("coroutine", {"text": "x" * 300_000})
        wrong = await bus.call("coroutine", {"text": 3})
        missing = await bus.call("coroutine")
        listed = await bus.call("coroutine", ["text"])  # type: ignore[arg-type]
        assert bus.statistics()["published"] == before
    for result in (wrong, missing, listed, large):
        assert result.error is not None
        assert result.error.type == "invalid_arguments"
    assert wrong.error is not None
    assert "$.text" in wrong.error.message
    assert large.error is not None
    assert "over the limit" in large.error.message


async def test_an_unknown_tool_is_named_with_its_neighbours(place: Place) -> None:
    """A misspelt tool gets not_found and the names that look like it."""
    async with place.serving(coroutine) as bus:
        result = await bus.call("corutine", {"text": "x"})
    assert result.error is not None
    assert result.error.type == "not_found"
    assert "'coroutine'" in result.error.message


async def test_nested_calls_inherit_user_and_deadline(place: Place) -> None:
    """A handler's own call runs for the same user and within what is left of its time."""
    seen: dict[str, Any] = {}

    @tool(service="inner", effect="read", replace=True)
    async def inner() -> str:
        """Tell what it knows."""
        here = invocation()
        seen.update(user=here.user, left=here.remaining, session=here.session)
        return "inside"

    @tool(service="outer", effect="read", replace=True)
    async def outer() -> str:
        """Call another tool."""
        return (await invocation().call("inner")).output or ""

    @tool(service="outer", effect="read", replace=True)
    def outer_thread() -> str:
        """Call another tool from a thread."""
        return invocation().call_sync("inner").output or ""

    async with place.serving(inner, outer) as bus:
        for name in ("outer", "outer_thread"):
            assert (await bus.call(name, user="alice", session="s1", timeout=5.0)).output == "inside"
            assert (seen["user"], seen["session"]) == ("alice", "s1")
            # The worker knows the server's clock to within a round trip.
            assert 0 < seen["left"] < 5.5


async def test_cancelling_a_call_cancels_what_it_called(place: Place) -> None:
    """Cancellation follows nested calls."""
    running, stopped = asyncio.Event(), asyncio.Event()

    @tool(service="inner", effect="read", replace=True)
    async def inner() -> str:
        """Hang."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    @tool(service="outer", effect="read", replace=True)
    async def outer() -> str:
        """Call another tool."""
        return (await invocation().call("inner")).output or ""

    async with place.serving(inner, outer) as bus, bus.stream("outer") as call:
        await asyncio.wait_for(running.wait(), 5)
        call.cancel()
        await asyncio.wait_for(stopped.wait(), 5)


async def test_invocation_knows_the_call(place: Place) -> None:
    """A handler sees id, tool, user, session, attempt, key and metadata of its call."""

    @tool(service="known", effect="read", replace=True)
    async def introspect() -> dict[str, Any]:
        """Tell what is known."""
        here = invocation()
        names = ("id", "tool", "service", "user", "session", "attempt", "idempotency_key")
        return {name: getattr(here, name) for name in names} | {"metadata": dict(here.metadata)}

    async with place.serving(introspect) as bus:
        bound = bus.bind(user="alice", session="s")
        result = await bound.call("introspect", idempotency_key="k", metadata={"a": "b"})
    assert result.data == {
        "id": result.meta.id,
        "tool": "introspect",
        "service": "known",
        "user": "alice",
        "session": "s",
        "attempt": 1,
        "idempotency_key": "k",
        "metadata": {"a": "b"},
    }


def test_invocation_outside_a_call_says_so() -> None:
    """invocation() without a running call is a clear error."""
    with pytest.raises(RuntimeError, match="while a tool runs"):
        invocation()


async def test_wrong_options_are_named(place: Place) -> None:
    """An option that does not exist, and a timeout that is none, are errors that name them."""
    async with place.serving(coroutine) as bus:
        with pytest.raises(ConfigurationError, match="timout"):
            await bus.call("coroutine", {"text": "x"}, timout=3)  # type: ignore[call-arg]
        for timeout in (0, -1, float("inf"), "soon"):
            with pytest.raises(ConfigurationError, match="timeout"):
                await bus.call("coroutine", {"text": "x"}, timeout=timeout)  # type: ignore[arg-type]


async def test_a_bus_that_is_not_open_says_what_to_do(place: Place) -> None:
    """Calling before open() or after aclose() is a clear error; opening and closing twice is not."""
    bus = place.bus()
    with pytest.raises(ConfigurationError, match="not open"):
        await bus.call("x")
    await bus.open()
    await bus.open()
    await asyncio.create_task(bus.aclose())
    await bus.aclose()
    with pytest.raises(ConfigurationError, match="not open"):
        await bus.call("x")


async def test_neither_arguments_nor_results_are_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """At info, logs carry names, ids and times, never what was said."""
    caplog.set_level(logging.INFO, logger="toolbus")
    async with place.serving(coroutine, Failing) as bus:
        await bus.call("coroutine", {"text": "a-secret-text"})
        await bus.call("refuse")
    assert "call.finished" in caplog.text
    assert "call.failed" in caplog.text
    assert "a-secret-text" not in caplog.text


@tool(effect="read", service="told")
async def tell() -> str:
    """Tell a story."""
    return "Once upon a time."


@pytest.mark.parametrize(("epoch", "attempt"), [(0, 3), (2, 1)])
async def test_a_call_that_was_cut_off_is_purged(place: Place, caplog: pytest.LogCaptureFixture, epoch: int, attempt: int) -> None:
    """It waits for its next run; its caller has frames of earlier ones, and takes the end for the newest."""
    caplog.set_level(logging.INFO, "toolbus")
    keys = Keys(place.settings.namespace)
    async with place.serving(tell, role="operator") as bus, Admin(place.settings) as admin:
        with redis.Redis.from_url(place.settings.url) as client:
            await admin.pause("told")
            await eventually(lambda: "service.paused" in caplog.text)
            client.hset(keys.fence("told"), "generation", f"{epoch}.a")
            async with bus.stream("tell", timeout=20.0) as call:
                await eventually(lambda: client.xlen(keys.queue("told")))
                assert call.request is not None
                frame = Frame(call.request.id, "run", attempt, 0, "text", "Once upon", epoch=epoch)
                client.xadd(keys.replies(bus.agent), {"f": join_frames([encode(frame)])})
                assert await anext(aiter(call)) == "Once upon"
                assert await admin.purge("told") == 1
                result = await call.result()
    assert result.error is not None
    assert (result.error.code, result.output) == ("purged", "Once upon")
