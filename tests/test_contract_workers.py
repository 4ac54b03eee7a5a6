"""Workers come and go, over every transport: hot plugging, draining, starting and failing to start."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
import redis

from tests.contract import Place, plugged
from tests.servers import eventually
from toolbus import ConfigurationError, ToolService, Worker, invocation, tool
from toolbus.bus.broker.server.keys import Keys

pytestmark = pytest.mark.anyio


async def test_hot_plug_and_clean_stop(place: Place) -> None:
    """A tool appears in a running agent when its service starts, and is gone when it stops."""
    async with place.bus() as bus:
        assert "plugged" not in bus.tools
        changes: list[tuple[str, str]] = []

        async def follow() -> None:
            async for change in bus.tools.changes():
                changes.append((change.kind, change.name))  # noqa: PERF401 - looked at while it grows

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        async with place.worker(plugged):
            await bus.wait_for_tool("plugged", timeout=5)
            assert (await bus.call("plugged")).output == "here"
        await eventually(lambda: "plugged" not in bus.tools)
        await eventually(lambda: changes == [("added", "plugged"), ("removed", "plugged")])
        gone = await bus.call("plugged")
        assert gone.error is not None
        assert (gone.error.type, gone.error.code) == ("unavailable", "withdrawn")
        assert "'plugged' was there until" in gone.error.message
    await asyncio.wait_for(following, 2)


async def test_replicas_of_one_owner_serve_side_by_side(place: Place) -> None:
    """A second worker of the same owner takes its share, and its stop changes nothing for callers."""
    async with place.worker(plugged, concurrency=1), place.bus() as bus:
        async with place.worker(plugged, concurrency=1):
            assert all(result.success for result in await asyncio.gather(*(bus.call("plugged") for _ in range(20))))
        assert (await bus.call("plugged")).success
        assert bus.tools["plugged"].available


async def test_draining_finishes_what_runs(place: Place) -> None:
    """Leaving a worker's context waits for running calls within the grace period."""
    running, release = asyncio.Event(), asyncio.Event()

    @tool(service="drain", effect="read", replace=True)
    async def long() -> str:
        """Run until released."""
        running.set()
        await release.wait()
        return "finished"

    async with place.bus() as bus:
        worker = place.worker(long)
        await worker.__aenter__()
        await bus.wait_for_tool("long")
        call = asyncio.create_task(bus.call("long"))
        await running.wait()
        draining = asyncio.create_task(worker.drain())
        await eventually(lambda: "long" not in bus.tools)
        release.set()
        await draining
        assert (await call).output == "finished"


async def test_a_draining_worker_still_hears_of_cancellations(place: Place) -> None:
    """A call that a draining worker runs is stopped when its caller cancels it, and the drain ends."""
    running = asyncio.Event()

    @tool(service="drain", effect="read", replace=True)
    async def long() -> str:
        """Run until cancelled."""
        running.set()
        await asyncio.Event().wait()
        return ""

    async with place.bus() as bus:
        worker = place.worker(long, grace=30.0)
        await worker.__aenter__()
        await bus.wait_for_tool("long")
        async with bus.stream("long") as call:
            await running.wait()
            draining = asyncio.create_task(worker.drain())
            await eventually(lambda: "long" not in bus.tools)
            call.cancel()
            await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("broken", ["stays-left", "stays-right"])
async def test_a_service_whose_queue_is_overwritten_keeps_no_other_from_leaving(place: Place, broken: str) -> None:
    """The worker leaves the registry and the queue of the other one at once, whichever of them it is."""

    @tool(service="stays-left", effect="read")
    async def stays_left() -> None:
        """Do nothing."""

    @tool(service="stays-right", effect="read")
    async def stays_right() -> None:
        """Do nothing."""

    keys, (whole,) = Keys(place.settings.namespace), {"stays-left", "stays-right"} - {broken}
    with redis.Redis.from_url(place.settings.url) as server:

        async def overwrite() -> None:
            while True:
                await asyncio.to_thread(server.set, keys.queue(broken), "x", px=60_000)

        async with place.worker(stays_left, stays_right) as worker:
            instance = worker.instance
            assert server.hexists(keys.instances(whole), f"i:{instance}")
            overwriting = asyncio.create_task(overwrite())
            await asyncio.sleep(0)
        overwriting.cancel()
        await asyncio.wait([overwriting])
        # The last worker of a service takes the empty queue with it.
        assert not server.exists(keys.queue(whole)) or server.xinfo_consumers(keys.queue(whole), "g") == []
        assert not server.hexists(keys.instances(whole), f"i:{instance}")
        assert server.zscore(keys.live, f"{whole}/{instance}") is None
        server.delete(keys.queue(broken))


async def test_startup_and_cleanup_run_once_each(place: Place) -> None:
    """A service's own hooks run around its life; a failing clean-up does not stop the others."""
    seen: list[str] = []

    class Resource(ToolService):
        id = "resource"
        effect = "read"

        async def startup(self) -> None:
            seen.append("startup")

        async def cleanup(self) -> None:
            seen.append("cleanup")
            raise ValueError("already closed")

        @tool
        async def use(self) -> str:
            """Use it."""
            return ",".join(seen)

    async with place.serving(Resource, plugged) as bus:
        assert (await bus.call("use")).output == "startup"
    assert seen == ["startup", "cleanup"]


async def test_a_worker_that_starts_or_drains_is_not_started_again(place: Place) -> None:
    """It says which of them it does; it can be started when that is over, and runs its hooks once each time."""
    seen: list[str] = []
    go = asyncio.Event()

    class Slow(ToolService):
        id = "slow"
        effect = "read"

        async def startup(self) -> None:
            seen.append("startup")
            await go.wait()

        async def cleanup(self) -> None:
            seen.append("cleanup")
            await go.wait()

        @tool
        async def use_slow(self) -> str:
            """Use it."""
            return "used"

    worker = place.worker(Slow)
    for _ in range(2):
        for change, name in ((worker.__aenter__, "starts"), (worker.drain, "drains")):
            seen.clear()
            go.clear()
            changing = asyncio.create_task(change())
            await eventually(lambda: seen)
            with pytest.raises(ConfigurationError, match=f"already {name}"):
                await worker.__aenter__()
            if name == "starts":
                with pytest.raises(ConfigurationError, match="drain it when it serves"):
                    await worker.drain()
            go.set()
            await asyncio.wait_for(changing, 20.0)
            assert len(seen) == 1


async def test_one_failing_startup_names_itself_and_leaves_nothing(place: Place) -> None:
    """A service that can't start stops the worker's start, and nothing stays registered."""

    class Broken(ToolService):
        id = "broken"

        async def startup(self) -> None:
            raise OSError("no disk")

        @tool
        async def never(self) -> str:
            """Never run."""
            return ""

    with pytest.raises(ConfigurationError, match=r"service 'broken' .* can't be started: OSError: no disk") as caught:
        async with place.worker(plugged, Broken):
            pass
    assert isinstance(caught.value.__cause__, OSError)
    async with place.bus() as bus:
        assert list(bus.tools) == []


def test_nothing_to_serve_says_so() -> None:
    """A worker without tools is a clear error."""
    with pytest.raises(ConfigurationError, match="nothing to serve"):
        Worker([], url="memory://")
    with pytest.raises(ConfigurationError, match="not a tool"):
        Worker(print, url="memory://")


async def test_a_service_that_scales_to_zero_keeps_its_calls(place: Place) -> None:
    """Without live workers its tools stay callable, and the next worker answers what was queued."""

    class Sleepy(ToolService):
        id = "sleepy"
        effect = "read"
        scale_to_zero = True

        @tool
        async def wake(self) -> str:
            """Wake up."""
            return "awake"

    async with place.bus() as bus:
        async with place.worker(Sleepy):
            await bus.wait_for_tool("wake")
        call = asyncio.create_task(bus.call("wake", timeout=10.0))
        await eventually(lambda: bus.statistics()["published"] == 1)
        assert bus.tools["wake"].available
        async with place.worker(Sleepy):
            assert (await call).output == "awake"


async def test_calls_left_at_the_end_of_the_grace_go_to_another_worker(place: Place) -> None:
    """Calls that a draining worker does not finish are taken over and answered once."""
    starts = 0

    @tool(service="handover", effect="idempotent", replace=True)
    async def stubborn() -> str:
        """Hang in the first worker only."""
        nonlocal starts
        starts += 1
        if starts == 1:
            await asyncio.Event().wait()
        return "done elsewhere"

    async with place.bus(lease=0.5) as bus:
        first = place.worker(stubborn, lease=0.5, grace=0.1)
        await first.__aenter__()
        await bus.wait_for_tool("stubborn")
        call = asyncio.create_task(bus.call("stubborn", timeout=20.0))
        await eventually(lambda: starts == 1)
        async with place.worker(stubborn, lease=0.5):
            await first.drain()
            result = await call
    assert (result.output, result.meta.attempts, starts) == ("done elsewhere", 2, 2)


async def test_another_event_loop_is_told_so(place: Place) -> None:
    """A bus used from another loop is a clear error rather than a hang."""
    async with place.bus() as bus:

        def elsewhere() -> str:
            try:
                asyncio.run(bus.call("x"))
            except ConfigurationError as error:
                return str(error)
            return "no error"

        assert "another event loop" in await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize("times", [1, 3])
async def test_each_attempt_of_a_call_that_is_handed_back_has_a_number_of_its_own(place: Place, times: int) -> None:
    """Also when the frames of the old run leave in the moment of the hand-back; nobody takes hand-backs for crashes."""
    attempts: list[list[int]] = [[] for _ in range(4)]
    last = asyncio.Event()

    @tool(service="long", effect="read", replace=True)
    async def long(number: int) -> AsyncIterator[str]:
        """Stream until the last worker has it."""
        attempts[number].append(invocation().attempt)
        for piece in range(2_000):
            yield f"{piece} "
            if piece > 20:
                await asyncio.sleep(0.001 if not last.is_set() else 0)

    async with place.bus() as bus:
        workers = [place.worker(long, grace=0.05, concurrency=4, max_deliveries=5) for _ in range(times + 1)]
        async with workers[0]:
            await bus.wait_for_tool("long")
            calls = [asyncio.create_task(bus.call("long", {"number": number}, timeout=30.0)) for number in range(4)]
            for leaving, following in itertools.pairwise(workers):
                await eventually(lambda: all(len(each) == workers.index(leaving) + 1 for each in attempts))  # noqa: B023
                await following.__aenter__()
                await leaving.drain()
            last.set()
            results = [await call for call in calls]
        for worker in workers[1:]:
            await worker.aclose()
    assert [result.output for result in results] == ["".join(f"{piece} " for piece in range(2_000))] * 4
    assert attempts == [[*range(1, times + 2)]] * 4
