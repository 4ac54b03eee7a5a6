"""A caller that reads a call: it is launched once, a reader is woken, and waits may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.client.calling import Host, answer, made, told
from tests.client.frames import kinds, run
from tests.servers import eventually
from toolbus import ConfigurationError, ErrorInfo, ToolError
from toolbus.bus.client.calls.call import Call
from toolbus.bus.values.events import Finished, Reset, Started, Text
from toolbus.bus.values.results import StreamReset

pytestmark = pytest.mark.anyio


async def enter(call: Call) -> None:
    """Use a call as a context until it has ended."""
    async with call:
        await eventually(lambda: call.done)


async def iterate(call: Call) -> list[str]:
    """Return the text that iterating over a call yields."""
    return [text async for text in call]


async def listen(call: Call) -> None:
    """Read the events of a call."""
    async for _ in call.events():
        pass


async def wait(call: Call) -> None:
    """Wait for the result."""
    await call.result()


USES = pytest.mark.parametrize("use", [enter, iterate, listen, wait])


# --- Launching ---


@USES
async def test_every_use_launches_a_call_once(use: Callable[[Call], Awaitable[object]]) -> None:
    """Entering, iterating, reading events and waiting each publish the call when nothing did before."""
    host = Host()
    call = made(host, streaming=True, launched=False)
    using = asyncio.create_task(use(call))
    await eventually(lambda: bool(host.launched))
    call.feed(answer(), 1.0)
    await using
    assert await iterate(call) in ([], ["a"])
    await wait(call)
    await enter(call)
    assert host.launched == [call]


@USES
async def test_a_call_that_waits_for_a_worker_is_awaited(use: Callable[[Call], Awaitable[object]]) -> None:
    """Every use of a call awaits the coroutine that its launch left."""
    host = Host()
    call = made(host, launched=False)
    awaited = []

    async def publish() -> None:
        awaited.append(call)
        call.feed(answer(), 1.0)

    host.trouble = publish()
    await use(call)
    assert awaited == [call]


@USES
async def test_a_call_with_wrong_options_can_be_used_again(use: Callable[[Call], Awaitable[object]]) -> None:
    """A launch that raises was none: the next use tries again."""
    host = Host()
    call = made(host, launched=False)
    host.problems += [ConfigurationError("one"), ConfigurationError("two")]
    for message in ("one", "two"):
        with pytest.raises(ConfigurationError, match=message):
            await use(call)
    assert host.launched == [call, call]


# --- Reading ---


async def test_a_reader_is_woken_by_what_comes() -> None:
    """A reader that waits gets each event when it comes, and the end."""
    call = made(Host(), streaming=True)
    seen: list[object] = []

    async def read() -> None:
        async for event in call.events():
            seen.append(event)  # noqa: PERF401 - what was read so far is looked at

    reading = asyncio.create_task(read())
    frames = run(1, "a", "b")
    for number, frame in enumerate(frames[:2], 2):
        call.feed(frame, 1.0)
        await eventually(lambda number=number: len(seen) == number)
    call.feed(frames[2], 1.0)
    async with asyncio.timeout(2):
        await reading
    assert seen[1:] == [Text("a"), Text("b"), Finished(await call.result())]


async def test_iteration_raises_the_failure_behind_the_text() -> None:
    """A reader of text gets what came, and then the error."""
    call = made(Host(), streaming=True)
    for frame in run(1, "a", "", "b", error=ErrorInfo("tool_error", message="it broke")):
        call.feed(frame, 1.0)
    reader = aiter(call)
    assert [await anext(reader), await anext(reader)] == ["a", "b"]
    with pytest.raises(ToolError, match="it broke"):
        await anext(reader)


async def test_iteration_stops_at_a_reset() -> None:
    """A reader of text is told that what it has is void; one of events reads on."""
    call = made(Host(), streaming=True)
    for frame in (*run(1, "abc", end=False), *run(2, "x")):
        call.feed(frame, 1.0)
    reader = aiter(call)
    assert await anext(reader) == "abc"
    with pytest.raises(StreamReset, match="attempt 2 of 't'"):
        await anext(reader)
    assert kinds(await told(call)) == [Text, Finished]
    call = made(Host(), streaming=True)
    for frame in (*run(1, "abc", end=False), *run(2, "x")):
        call.feed(frame, 1.0)
    assert kinds(await told(call)) == [Started, Text, Reset, Text, Finished]


async def test_empty_text_is_no_event() -> None:
    """A piece of which nothing is left for the reader is passed over."""
    for read in (iterate, told):
        call = made(Host(), streaming=True)
        call.resume_from(2)
        for frame in run(1, "ab", "c"):
            call.feed(frame, 1.0)
        assert [text for text in await read(call) if isinstance(text, (str, Text))] in (["c"], [Text("c")])


async def test_a_call_that_is_left_early_is_cancelled() -> None:
    """Leaving the context ends the call and tells the worker; a call that has ended stays as it is."""
    host = Host()
    async with made(host, streaming=True) as call:
        call.feed(run(1, "a")[0], 1.0)
        assert not call.done
    result = await call.result()
    assert result.error is not None
    assert (result.error.type, result.output, host.withdrawn) == ("cancelled", "a", [call])
    async with call:
        pass
    assert (await call.result(), host.withdrawn) == (result, [call])


# --- Waiting ---


async def test_waiting_for_the_result_drops_the_events() -> None:
    """Once only the result is awaited neither old nor new events are kept, so any number may come."""
    call = made(Host(), streaming=True, limit=100)
    call.feed(run(1, "a" * 20)[0], 1.0)
    waiting = asyncio.create_task(call.result())
    await asyncio.sleep(0)
    for frame in run(1, *["a" * 20] * 9)[1:]:
        call.feed(frame, 1.0)
    async with asyncio.timeout(2):
        assert (await waiting).output == "a" * 180
    assert kinds(await told(call)) == [Finished]


async def test_a_cancelled_wait_cancels_the_call() -> None:
    """The worker is told, and the result says so to whoever asks later."""
    host = Host()
    call = made(host)
    waiting = asyncio.create_task(call.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    result = await call.result()
    assert result.error is not None
    assert (result.error.type, host.withdrawn, host.forgotten) == ("cancelled", [call], [call])


async def test_a_cancelled_wait_beside_a_reader_leaves_others_their_result() -> None:
    """While a task reads, cancelling one wait ends the call for the reader and for another wait as cancelled, not by an exception."""
    call = made(Host(), streaming=True)
    reading = asyncio.create_task(iterate(call))
    await eventually(lambda: call._buffer().is_awaited)
    one, other = asyncio.create_task(call.result()), asyncio.create_task(call.result())
    await asyncio.sleep(0)
    one.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await one
        with pytest.raises(ToolError, match="cancelled"):
            await reading
        result = await other
    assert result.error is not None
    assert result.error.type == "cancelled"


async def test_a_cancelled_wait_leaves_another_wait_its_result() -> None:
    """The other task was not cancelled, so it is told by a result that the call was."""
    call = made(Host())
    one, other = asyncio.create_task(call.result()), asyncio.create_task(call.result())
    await asyncio.sleep(0)
    one.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await one
        result = await other
    assert result.error is not None
    assert result.error.type == "cancelled"


@pytest.mark.parametrize("way", ["events", "text", "context"])
async def test_a_call_that_was_cancelled_before_it_began_is_never_published(way: str) -> None:
    """However it is read then, it says that it was cancelled."""
    host = Host()
    call = made(host, streaming=True, launched=False)
    call.cancel()
    if way == "events":
        assert [type(event) async for event in call.events()] == [Finished]
    elif way == "text":
        with pytest.raises(ToolError, match="cancelled"):
            await iterate(call)
    else:
        async with call:
            assert call.done
    assert host.launched == []
