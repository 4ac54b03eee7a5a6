"""A call in its caller's hand: reading it in several ways, waiting, wrong options, and buses that go away."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ToolBus, ToolError, Worker, invocation, tool
from toolbus.bus.values.events import Finished, Text
from toolbus.bus.values.results import CallCancelled, ToolbusError

pytestmark = pytest.mark.anyio


@tool(service="call-tests", effect="read")
async def count(n: int):
    """Count."""
    for number in range(n):
        yield f"{number} "


@tool(service="call-tests", effect="read")
async def half():
    """Fail half way."""
    yield "half"
    raise ValueError("no more")


@tool(service="call-tests", effect="read")
async def hang():
    """Say one thing and hang."""
    yield "one thing"
    await asyncio.Event().wait()


@pytest.fixture
async def bus(namespace: str):
    """Open a bus and a worker in this process."""
    async with Worker(count, url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as opened:
        yield opened


async def test_iteration_goes_on_where_it_was_left(bus: ToolBus) -> None:
    """Leaving a loop over a call and starting another reads on."""
    async with bus.stream("count", {"n": 4}) as call:
        seen: list[str] = []
        async for text in call:
            seen.append(text)
            break
        assert seen == ["0 "]
        assert [text async for text in call] == ["1 ", "2 ", "3 "]
        assert (await call.result()).output == "0 1 2 3 "


async def test_the_end_is_told_to_every_reader(bus: ToolBus) -> None:
    """events() after the end tells the end again, and iterating over a failed call raises each time."""
    async with bus.stream("half") as call:
        assert [type(event) async for event in call.events()][-2:] == [Text, Finished]
        assert [type(event) async for event in call.events()] == [Finished]
        with pytest.raises(ToolError, match="no more"):
            assert [text async for text in call] == []


async def test_a_drained_reader_hears_of_the_failure(bus: ToolBus) -> None:
    """A failure is raised to a reader although result() took the text away from it."""
    async with bus.stream("half") as call:
        assert (await call.result()).output == "half"
        with pytest.raises(ToolError, match="no more"):
            assert [text async for text in call] == []


async def test_two_tasks_cannot_wait_for_the_same_events(bus: ToolBus) -> None:
    """A second task that waits for a call's events is told so, instead of stealing them."""
    async with bus.stream("hang") as call:
        texts: list[str] = []

        async def read() -> None:
            async for text in call:
                texts.append(text)  # noqa: PERF401 - what was read so far is looked at

        reading = asyncio.create_task(read())
        await eventually(lambda: texts == ["one thing"])
        with pytest.raises(RuntimeError, match="somebody else"):
            async for _ in call:
                pass
        call.cancel()
        with pytest.raises(ToolError, match="cancelled"):
            await reading


async def test_a_stream_that_is_only_awaited(bus: ToolBus) -> None:
    """result() without the context starts the call; cancel() before the start ends it unpublished."""
    assert (await bus.stream("count", {"n": 2}).result()).output == "0 1 "
    before = bus.statistics()["published"]
    call = bus.stream("count", {"n": 2})
    call.cancel()
    result = await call.result()
    assert result.error is not None
    assert result.error.type == "cancelled"
    assert bus.statistics()["published"] == before


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("count", {"idle_timeout": -1}),
        ("count", {"idle_timeout": "soon"}),
        ("count", {"timeout": 1e9}),
        ("unknown", {"wait": "long"}),
        ("unknown", {"wait": True, "timeout": -1}),
    ],
)
async def test_wrong_options_publish_nothing(bus: ToolBus, name: str, options: dict[str, Any]) -> None:
    """An option with an impossible value raises, each time, and leaves no call behind."""
    before = bus.statistics()["published"]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"timeout|wait"):
            await bus.stream(name, {"n": 1}, **options).result()
    assert (bus.statistics()["published"], bus.statistics()["in_flight"]) == (before, 0)


@pytest.mark.parametrize("way", ["cancel", "close", "task"])
async def test_waiting_for_a_worker_can_be_given_up(place: Place, way: str) -> None:
    """A call that waits for a worker ends at once when it is cancelled or its bus is closed."""
    bus = place.bus()
    await bus.open()
    call = bus.stream("nobody", wait=60.0)
    task = asyncio.create_task(call.result())
    await asyncio.sleep(0)
    if way == "cancel":
        call.cancel()
    elif way == "close":
        await bus.aclose()
    else:
        task.cancel()
    async with asyncio.timeout(5):
        if way == "task":
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert await task == await call.result()
        result = await call.result()
    assert result.error is not None
    assert result.error.type == "cancelled"
    await bus.aclose()


async def test_the_wait_for_a_tool_ends_with_a_bus_that_fails(place: Place) -> None:
    """A model's call that waits for its tool ends at once when nothing arrives any more."""
    async with place.bus() as bus:
        waiting = asyncio.create_task(bus._dispatcher.until_callable(lambda: None, {}, 60.0))
        await asyncio.sleep(0)
        bus._dispatcher.on_failed(ToolbusError("a bug"))
        error = await asyncio.wait_for(waiting, 5)
    assert error is not None
    assert error.code == "bus_failed"


async def test_wait_true_lasts_as_long_as_the_timeout(bus: ToolBus) -> None:
    """wait=True gives up after the call's timeout, with what was missing."""
    result = await bus.call("nobody", wait=True, timeout=0.05)
    assert result.error is not None
    assert result.error.type == "not_found"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("wait", [True, 30.0])
async def test_the_wait_for_a_worker_is_part_of_the_timeout(place: Place, wait: float) -> None:
    """A call whose worker comes late ends when its timeout says, and its handler knows how long it has."""
    left: list[float] = []

    @tool(service="late", effect="read")
    async def tell_late() -> str:
        """Tell how much time is left, then take it."""
        left.append(invocation().remaining)
        await asyncio.Event().wait()
        return ""

    async with place.bus() as bus:
        began = time.monotonic()
        call = asyncio.create_task(bus.call("tell_late", wait=wait, timeout=2.0))
        await eventually(lambda: time.monotonic() > began + 1.0)
        async with place.worker(tell_late):
            result = await call
    assert result.error is not None
    # Caller and worker have the same deadline, and either may be the first to say so.
    assert result.error.type == "deadline_exceeded"
    assert 1.9 < time.monotonic() - began < 3.0
    assert 0 < left[0] <= 1.0


async def test_a_worker_that_comes_late_leaves_the_usual_time(place: Place) -> None:
    """Without a timeout of its own a call has the tool's from when there is a worker."""

    @tool(service="late", effect="read", timeout=7.0, replace=True)
    async def tell_usual() -> float:
        """Tell how much time is left."""
        return invocation().remaining

    async with place.bus() as bus:
        began = time.monotonic()
        call = asyncio.create_task(bus.call("tell_usual", wait=True))
        await eventually(lambda: time.monotonic() > began + 0.5)
        async with place.worker(tell_usual):
            assert 6.6 < (await call).data <= 7.0


async def test_options_without_effect_are_refused(bus: ToolBus) -> None:
    """Nobody relies on a priority that there is not."""
    with pytest.raises(ConfigurationError, match="'priority' is reserved"):
        await bus.call("adder", {"n": 1}, priority=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="'priority' is reserved"):
        bus.bind(priority=1)  # type: ignore[call-arg]


async def test_a_service_without_workers_is_unavailable_at_once(place: Place) -> None:
    """A tool that is known but not served answers as retryable, without waiting for the timeout."""
    document = b'{"type": "tool-service", "name": "idle-tool", "description": "d", "service": "idle"}'
    async with place.bus() as bus:
        await bus.put("tool/idle-tool", document)
        await bus.put("tool-service/idle", b'{"id": "idle"}')
        await eventually(lambda: "idle-tool" in bus.tools and bus.tools["idle-tool"].service_descriptor is not None)
        for result in (await bus.call("idle-tool"), await bus.service("idle").call("al", {}, {})):
            assert result.error is not None
            assert (result.error.type, result.error.retryable) == ("unavailable", True)


async def test_a_request_that_json_cannot_say(bus: ToolBus) -> None:
    """Arguments that can't be expressed in JSON are the caller's mistake, told as a value."""

    @tool(service="untyped-tests", effect="read", parameters={"type": "object"}, replace=True)
    async def anything(**given: Any) -> str:
        """Take anything."""
        return str(given)

    async with Worker(anything, settings=bus.settings):
        result = await bus.call("anything", {"a": object()})
    assert result.error is not None
    assert result.error.type == "invalid_arguments"


async def test_another_loop_is_told_so_at_every_door(bus: ToolBus) -> None:
    """put, delete and waiting from another loop are clear errors, too."""

    async def misuse() -> None:
        for use in (bus.put("tool/x", b"{}"), bus.delete("tool/x"), bus.wait_for_tool("count")):
            with pytest.raises(ConfigurationError, match="another event loop"):
                await use

    await asyncio.to_thread(asyncio.run, misuse())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_use_after_fork_is_a_clear_error(place: Place) -> None:
    """A forked child that calls its parent's bus is told to open one of its own; the parent's goes on."""
    async with place.serving(count) as bus:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                bus.stream("count", {"n": 1})
            except ConfigurationError as error:
                code = 0 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (await bus.call("count", {"n": 1})).output == "0 "


async def test_no_call_stays_behind(place: Place) -> None:
    """However calls end, the bus forgets them."""
    async with place.serving(count) as bus:
        async with bus.stream("count", {"n": 3}) as call:
            await anext(aiter(call))
        await bus.call("half")
        await bus.call("hang", timeout=0.05)
        await bus.call("unknown")
        assert bus.statistics()["in_flight"] == 0


def test_a_bus_needs_a_loop(namespace: str) -> None:
    """A bus may be made outside a loop; calling it there says what it needs."""
    with pytest.raises(ConfigurationError, match="not open"):
        ToolBus("memory://", namespace=namespace).stream("x")


def test_a_cancelled_call_is_told_apart() -> None:
    """The exception of check_cancelled() is not taken for the tool's own failure."""
    assert not issubclass(CallCancelled, ToolError)
