"""Callers that die, stop reading, or lie about the time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import invocation, tool
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.envelope import Request, encode, new_id

pytestmark = pytest.mark.anyio


class Stage:
    """The runs and cancellations that the tools of this file have seen."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.cancelled: list[str] = []


stage: Stage


@pytest.fixture(autouse=True)
def fresh_stage(anyio_backend: Any) -> None:
    """A stage of the test's own."""
    global stage  # noqa: PLW0603
    stage = Stage()


@tool(service="callers", effect="idempotent")
async def wait(name: str, seconds: float) -> str:
    """Say nothing for a while."""
    stage.runs.append(name)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        stage.cancelled.append(name)
        raise
    return name


@tool(service="callers", effect="read")
async def flood(size: int) -> Any:
    """Send and send."""
    stage.runs.append("flood")
    try:
        for _ in range(100_000):
            # JSON takes six bytes for it, so the reply's limit, which is looked at every 4 MB, is reached before the output's.
            yield "\x01" * size
            await asyncio.sleep(0)
    finally:
        stage.cancelled.append("flood")


@tool(service="callers", effect="read")
async def nest(name: str) -> str:
    """Call another tool."""
    result = await invocation().call("wait", {"name": name, "seconds": 30.0})
    return result.output or ""


class Caller:
    """A caller played by hand: it publishes, and reads nothing."""

    def __init__(self, place: Place) -> None:
        self.redis = redis.Redis.from_url(place.settings.url)
        self.keys = Keys(place.settings.namespace)
        self.agent = new_id()
        self.flushes = 0
        self.redis.xadd(self.keys.replies(self.agent), {"o": "1"})
        self.redis.pexpire(self.keys.replies(self.agent), 600_000)

    def call(self, tool: str, **arguments: Any) -> str:
        """Publish a call; its id."""
        request = Request(new_id(), self.agent, "callers", tool, arguments=arguments, timeout=120.0)
        keys = [self.keys.flushes(self.agent), self.keys.queue("callers")]
        args = [self.flushes, 600_000, "", 2, 10_000, 120_000, encode(request)]
        self.flushes += 1
        self.redis.eval(scripts.PUBLISH.source, len(keys), *keys, *args)
        return request.id

    def die(self) -> None:
        """Let the reply stream go, as its TTL does when nobody renews it."""
        self.redis.delete(self.keys.replies(self.agent))

    def queued(self) -> int:
        """Requests queued and running."""
        return int(self.redis.xlen(self.keys.queue("callers")))

    def ends(self) -> list[dict[str, Any]]:
        """The terminal frames that nobody has read."""
        entries = self.redis.xrange(self.keys.replies(self.agent))
        frames = [frame for _, fields in entries for frame in msgspec.json.decode(fields.get(b"f", b"[]"))]
        return [frame for frame in frames if frame.get("end_of_stream")]


@pytest.mark.usefixtures("slow")
async def test_a_dead_callers_work_is_skipped_and_stopped(place: Place) -> None:
    """Without its reply stream a call that runs is cancelled, though it sends nothing, and one that waits is never run."""
    async with place.worker(wait, concurrency=2, lease=1.0), place.bus() as bus:
        await bus.wait_for_tool("wait")
        caller = Caller(place)
        blocker = asyncio.create_task(bus.call("wait", {"name": "blocker", "seconds": 7.0}, timeout=30.0))
        caller.call("wait", name="running", seconds=60.0)
        await eventually(lambda: sorted(stage.runs) == ["blocker", "running"])
        for number in range(5):
            caller.call("wait", name=f"queued-{number}", seconds=0.0)
        await eventually(lambda: caller.queued() == 7)
        # Queued long enough to be looked at when they are taken.
        other = asyncio.create_task(bus.call("wait", {"name": "other", "seconds": 0.0}, timeout=30.0))
        await asyncio.wait([blocker], timeout=6.0)
        caller.die()
        await eventually(lambda: stage.cancelled == ["running"], timeout=5)
        assert (await blocker).output == "blocker"
        assert (await other).output == "other"
        await eventually(lambda: caller.queued() == 0)
        assert not [name for name in stage.runs if name.startswith("queued")]
        caller.redis.close()


@pytest.mark.parametrize(("size", "limits"), [(10, {"reply_limit": 100}), (60_000, {"reply_bytes": 6_000_000, "max_output": 6_000_000})])
async def test_a_caller_that_does_not_read_is_cut_off_and_hurts_nobody(place: Place, size: int, limits: dict[str, int]) -> None:
    """Over the bound of entries or bytes its calls end as slow_consumer; others are served all the while."""
    async with place.worker(flood, wait, **limits), place.bus() as bus:
        await bus.wait_for_tool("flood")
        caller = Caller(place)
        caller.call("flood", size=size)
        await eventually(lambda: stage.runs == ["flood"])
        assert (await bus.call("wait", {"name": "beside", "seconds": 0.0}, timeout=10.0)).success
        ends = await eventually(caller.ends, timeout=20)
        assert [end["error"]["type"] for end in ends] == ["slow_consumer"]
        await eventually(lambda: stage.cancelled == ["flood"])
        await eventually(lambda: caller.queued() == 0)
        memory = caller.redis.memory_usage(caller.keys.replies(caller.agent))
        assert memory < 24_000_000
        assert (await bus.call("wait", {"name": "after", "seconds": 0.0}, timeout=10.0)).success
        caller.die()
        caller.redis.close()


async def test_cancellation_follows_nested_calls(place: Place) -> None:
    """When the outer call is cancelled the inner one's handler is too, on whatever worker it runs."""
    async with place.worker(nest), place.worker(wait), place.bus() as bus:
        await bus.wait_for_tool("nest")
        await bus.wait_for_tool("wait")
        call = asyncio.create_task(bus.call("nest", {"name": "inner"}, timeout=30.0))
        await eventually(lambda: stage.runs == ["inner"])
        call.cancel()
        await eventually(lambda: stage.cancelled == ["inner"])


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("skew", [3600.0, -3600.0])
async def test_a_wrong_clock_on_a_machine_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    """With wall clocks an hour off at agent and worker, deadlines, leases and streams are as ever."""
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + skew)
    monkeypatch.setattr(time, "time_ns", lambda: int((true() + skew) * 1e9))
    async with place.worker(wait, lease=0.5), place.bus(lease=0.5) as bus:
        await bus.wait_for_tool("wait")
        slow = asyncio.create_task(bus.call("wait", {"name": "slow", "seconds": 1.5}, timeout=10.0))
        late = await bus.call("wait", {"name": "late", "seconds": 30.0}, timeout=0.5)
        assert late.error is not None
        assert late.error.type == "deadline_exceeded"
        result = await slow
        assert (result.output, result.meta.attempts) == ("slow", 1)
        assert "wait" in bus.tools
