"""Limits on calls, over every transport: time, cancellation, slots, queues and sizes."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.contract import Place, out_of_time, plugged
from toolbus import Blob, Settings, ToolBus, ToolResult, invocation, tool
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.values.events import Finished
from toolbus.bus.values.results import CallCancelled

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("where", ["call", "tool"])
async def test_a_timeout_ends_the_call_and_cancels_the_handler(place: Place, where: str) -> None:
    """After the call's or the tool's own timeout the caller has its error and the handler is cancelled."""
    stopped = asyncio.Event()

    @tool(service="timing", effect="read", timeout=0.5 if where == "tool" else 0.0, replace=True)
    async def hang() -> str:
        """Never end."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with place.serving(hang) as bus:
        started = time.monotonic()
        result = await bus.call("hang", **({"timeout": 0.5} if where == "call" else {}))
        assert result.error is not None
        assert result.error.type == "deadline_exceeded"
        assert time.monotonic() - started < 10
        await asyncio.wait_for(stopped.wait(), 10)


async def test_silence_ends_a_call_with_an_idle_timeout(place: Place) -> None:
    """A stream that stops producing ends after its idle timeout and keeps what it had."""

    @tool(service="timing", effect="read", replace=True)
    async def stall():
        """Say one thing, then nothing."""
        yield "one thing"
        await asyncio.Event().wait()

    async with place.serving(stall) as bus:
        result = await bus.call("stall", timeout=10.0, idle_timeout=0.5)
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("deadline_exceeded", "idle_timeout")
    assert result.output == "one thing"


@pytest.mark.parametrize("way", ["cancel", "leave", "task", "close"])
async def test_a_caller_that_goes_away_cancels_the_handler(place: Place, way: str) -> None:
    """cancel(), leaving the context, cancelling the waiting task and closing the bus all reach the running handler."""
    running, stopped = asyncio.Event(), asyncio.Event()

    @tool(service="timing", effect="read", replace=True)
    async def endless():
        """Run until cancelled."""
        try:
            running.set()
            yield "started"
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with place.worker(endless):
        bus = place.bus()
        await bus.open()
        if way == "task":
            task = asyncio.create_task(bus.call("endless"))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async with bus.stream("endless") as call:
                async for _ in call.events():
                    if running.is_set():
                        break
                if way == "cancel":
                    call.cancel()
                elif way == "close":
                    await bus.aclose()
            if way != "leave":
                result = await call.result()
                assert result.error is not None
                assert result.error.type == "cancelled"
        await asyncio.wait_for(stopped.wait(), 5)
        await bus.aclose()


async def test_a_thread_hears_of_its_cancellation(place: Place) -> None:
    """A plain handler that asks check_cancelled() is stopped by it."""
    seen: list[str] = []

    @tool(service="timing", effect="read", replace=True)
    def busy() -> str:
        """Work until told to stop."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                invocation().check_cancelled()
            except CallCancelled as error:
                seen.append(str(error))
                raise
        return "never told"

    async with place.serving(busy) as bus:
        result = await out_of_time(bus, "busy")
        assert result.error is not None
        assert result.error.type == "deadline_exceeded"
    assert seen


async def test_slots_bound_how_many_handlers_run(place: Place) -> None:
    """A worker never runs more handlers at once than its concurrency."""
    running = most = 0
    full = asyncio.Event()

    @tool(service="slots", effect="read", replace=True)
    async def occupy() -> str:
        """Hold a slot for a moment."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        # The tool's own time, in which a fourth could begin.
        await asyncio.sleep(0.01)
        running -= 1
        return "done"

    async with place.serving(occupy, concurrency=3) as bus:
        results = await asyncio.gather(*(bus.call("occupy") for _ in range(20)))
    assert all(result.success for result in results)
    assert most == 3


async def test_a_full_queue_answers_at_once(place: Place) -> None:
    """Beyond the bound a call ends as overloaded, with the depth and a retry hint."""
    release = asyncio.Event()

    @tool(service="narrow", effect="read", replace=True)
    async def wait() -> str:
        """Wait until released."""
        await release.wait()
        return "done"

    async with place.worker(wait, concurrency=1), place.bus(queue_limit=3) as bus:
        calls = [asyncio.create_task(bus.call("wait")) for _ in range(5)]
        done, _ = await asyncio.wait(calls, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert refused.error is not None
        assert refused.error.type == "overloaded"
        assert refused.error.details == {"depth": 3}
        assert refused.error.retry_after
        release.set()
        outcomes = [(await call).success for call in calls]
    assert sorted(outcomes) == [False, False, True, True, True]


async def test_a_reader_that_stops_reading_hurts_nobody_else(place: Place) -> None:
    """A call whose events pile up ends as slow_consumer; other calls go on."""

    @tool(service="flood", effect="read", replace=True)
    async def flood():
        """Produce without end."""
        while True:
            yield "x" * 10_000
            await asyncio.sleep(0)

    async with place.serving(flood, plugged, call_buffer=200_000) as bus, bus.stream("flood") as call:
        async with asyncio.timeout(10):
            while not call.done:
                assert (await bus.call("plugged")).output == "here"
        result = await call.result()
        assert result.error is not None
        assert result.error.type == "slow_consumer"


async def test_output_over_the_limit_is_an_error_that_keeps_what_came(place: Place) -> None:
    """A handler that produces more than max_output is ended; what was delivered stays."""

    @tool(service="flood", effect="read", replace=True)
    async def chatty():
        """Produce too much."""
        for _ in range(100):
            yield "y" * 10_000

    async with place.serving(chatty, max_output=50_000) as bus:
        result = await bus.call("chatty")
    assert result.error is not None
    assert result.error.code == "output_limit"
    assert result.output == "y" * 50_000


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "middleware"])
async def test_a_reader_that_reads_at_once_gets_events_of_any_size(place: Place, guarded: bool) -> None:
    """One event may be larger than the buffer, which bounds what waits beside the newest one."""
    blob = Blob("application/octet-stream", bytes(9 * 1024 * 1024))

    @tool(service="flood", effect="read", replace=True)
    async def large():
        """Produce a large file."""
        yield "here: "
        yield blob
        yield ToolResult.ok({"bytes": len(blob.data)})

    async def watch(call: ToolCall, following: Next) -> ToolResult:
        return await following(call)

    settings = Settings.load(base=place.settings)
    async with place.worker(large), ToolBus(settings=settings, middleware=[watch] if guarded else []) as bus:
        await bus.wait_for_tool("large")
        async with bus.stream("large") as call:
            events = [event async for event in call.events()]
        assert [event for event in events if isinstance(event, Blob)] == [blob]
        assert isinstance(events[-1], Finished)
        assert events[-1].result.content == (blob,)
        assert events[-1].result.data == {"bytes": len(blob.data)}
