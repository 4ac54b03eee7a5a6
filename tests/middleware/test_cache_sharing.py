"""The cache: equal calls that run at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract import Place
from tests.middleware.cached import call_of, measured, rows, seen
from tests.servers import eventually
from toolbus import ErrorInfo, ToolBus, ToolResult, Worker
from toolbus.middleware import Cache, ToolCall

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_equal_calls_at_once_run_once(place: Place, side: str) -> None:
    """Fifty of them are one run, and each has the answer."""
    cache = Cache()
    worker = Worker([rows], settings=place.with_(concurrency=64), middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("measure")
        calls = [asyncio.create_task(bus.call("measure", {"text": "a"})) for _ in range(50)]
        await eventually(lambda: len(seen) == 1)
        if side == "worker":
            await eventually(lambda: worker.statistics()["running"] == 50)
        measured.set()
        assert {(await each).data for each in calls} == {1}
        assert (await bus.call("measure", {"text": "b"})).data == 2


async def test_a_call_that_waits_for_an_equal_one_keeps_its_own_timeout(place: Place) -> None:
    """It ends when its own time is up, and the one that runs goes on."""
    async with Worker([rows], settings=place.settings), ToolBus(settings=place.settings, middleware=[Cache()]) as bus:
        await bus.wait_for_tool("measure")
        first = asyncio.create_task(bus.call("measure", {"text": "a"}, timeout=30))
        await eventually(lambda: len(seen) == 1)
        error = (await bus.call("measure", {"text": "a"}, timeout=0.3)).error
        assert error is not None
        assert (error.type, error.message) == ("deadline_exceeded", "no result within 0.3 s")
        measured.set()
        assert (await first).data == 1


async def test_when_the_call_that_runs_is_given_up_one_that_waited_runs() -> None:
    """Cancelling one call cancels no other, and those that wait still run once."""
    cache, reading, begun, go = Cache(), call_of("light", effect="read"), 0, asyncio.Event()

    async def slow(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        await go.wait()
        return ToolResult.ok(begun)

    calls = [asyncio.create_task(cache(reading, slow)) for _ in range(4)]
    await eventually(lambda: begun == 1)
    calls[0].cancel()
    await eventually(lambda: begun == 2)
    calls[2].cancel()
    go.set()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [each.data if isinstance(each, ToolResult) else type(each) for each in told] == [
        asyncio.CancelledError,
        2,
        asyncio.CancelledError,
        2,
    ]


@pytest.mark.parametrize("ends", ["error", "exception", "no JSON"])
async def test_what_can_not_be_shared_is_run_by_each(ends: str) -> None:
    """A failure is the failure of one call, so those that waited for it run side by side."""
    cache, reading, begun, go = Cache(), call_of("light", effect="read"), 0, asyncio.Event()

    async def fail(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        if begun > 1:
            return ToolResult.ok(begun)
        await go.wait()
        if ends == "exception":
            raise RuntimeError("down")
        return ToolResult.ok(object()) if ends == "no JSON" else ToolResult.fail(ErrorInfo("tool_error"))

    calls = [asyncio.create_task(cache(reading, fail)) for _ in range(4)]
    await eventually(lambda: begun == 1)
    go.set()
    first, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert begun == 4
    assert isinstance(first, RuntimeError if ends == "exception" else ToolResult)
    assert sorted(each.data for each in others if isinstance(each, ToolResult)) == [2, 3, 4]


async def test_an_answer_too_large_to_keep_is_shared_with_those_who_wait() -> None:
    """It exists, so nobody has to compute it again at the same time."""
    cache, reading, begun, go = Cache(most_bytes=1000), call_of("light", effect="read"), 0, asyncio.Event()

    async def large(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        await go.wait()
        return ToolResult.ok("x" * 5000)

    calls = [asyncio.create_task(cache(reading, large)) for _ in range(3)]
    await eventually(lambda: begun == 1)
    go.set()
    assert {len((await each).data) for each in calls} == {5000}
    assert (begun, cache.statistics()) == (1, {"kept": 0, "bytes": 0})
