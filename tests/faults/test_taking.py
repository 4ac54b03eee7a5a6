"""Taking requests when something is in the way: no free slot, a missing group, a pause; and the script that takes by turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolService, tool
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.worker.slots import Taking

pytestmark = pytest.mark.anyio


def read_by(client: redis.Redis, consumer: str, queue: str) -> Any:
    """Take one request as a consumer without a worker."""
    return client.xreadgroup("g", consumer, {queue: ">"}, count=1)


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> list[Taking]:
    """Grows whenever a worker that has no free slot looks for one."""
    found: list[Taking] = []
    free_slots = Taking.free_slots

    def counted(taking: Taking) -> int:
        free = free_slots(taking)
        if not free:
            found.append(taking)
        return free

    monkeypatch.setattr(Taking, "free_slots", counted)
    return found


@pytest.mark.usefixtures("slow")
async def test_a_dead_workers_call_is_recovered_by_who_was_busy(place: Place, in_vain: list[Taking]) -> None:
    """A worker that has no free slot whenever it is time to reap does it when it next has one, ahead of what is queued."""
    begun: list[str] = []
    gate = asyncio.Event()

    @tool(service="busy", effect="read", replace=True)
    async def nap(name: str) -> str:
        """Take a while."""
        begun.append(name)
        await gate.wait()
        await asyncio.sleep(0.1)
        return name

    client = redis.Redis.from_url(place.settings.url)
    queue = Keys(place.settings.namespace).queue("busy")
    async with place.serving(nap, concurrency=1, lease=1.5) as bus:
        await bus.wait_for_tool("nap")
        calls = [asyncio.create_task(bus.call("nap", {"name": "first"}))]
        await eventually(lambda: begun)
        calls.append(asyncio.create_task(bus.call("nap", {"name": "lost"})))
        await eventually(lambda: read_by(client, "dead", queue))
        calls += [asyncio.create_task(bus.call("nap", {"name": "queued"})) for _ in range(30)]
        # Leases are judged only some time after a worker has come; it is time to reap three times a lease.
        await eventually(lambda: len(in_vain) >= 7, timeout=30)
        gate.set()
        assert all(result.success for result in await asyncio.gather(*calls))
    client.close()
    assert begun.index("lost") <= 2


async def test_a_service_whose_group_is_missing_does_not_stop_its_siblings(place: Place) -> None:
    """The service is registered again while the others of its worker go on."""

    @tool(service="left", effect="read", replace=True)
    async def lefthand() -> str:
        """Answer."""
        return "left"

    @tool(service="right", effect="read", replace=True)
    async def righthand() -> str:
        """Answer."""
        return "right"

    client = redis.Redis.from_url(place.settings.url)
    async with place.serving(lefthand, righthand, concurrency=1, lease=30.0) as bus:
        await bus.wait_for_tool("righthand")
        client.delete(Keys(place.settings.namespace).queue("right"))

        async def answered() -> bool:
            assert (await bus.call("lefthand")).success
            return (await bus.call("righthand")).success

        await eventually(answered, timeout=10)
    client.close()


async def test_a_paused_service_with_returned_calls_does_not_stop_its_siblings(place: Place, in_vain: list[Taking]) -> None:
    """Calls for a paused service's slots wait for the end of the pause, and the worker goes on with its other services."""
    running, release = asyncio.Event(), asyncio.Event()

    class Keeping(ToolService):
        """Keeps sessions at one worker."""

        id = "keeping"
        effect = "read"
        sticky_sessions = True
        tools = ({"name": "keep", "description": "Run until released.", "arguments": []},)

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            running.set()
            await release.wait()
            return "kept"

    @tool(service="sibling", effect="read", replace=True)
    async def sibling() -> str:
        """Answer."""
        return "here"

    keys = Keys(place.settings.namespace)
    client = redis.Redis.from_url(place.settings.url)
    async with place.serving(Keeping(), sibling, concurrency=1, lease=30.0) as bus:
        kept = asyncio.create_task(bus.call("keep"))
        await running.wait()
        client.publish(keys.wake("keeping"), "back keeping")
        await eventually(lambda: in_vain)
        client.sadd(keys.paused, "keeping")
        client.expire(keys.paused, 60)
        client.publish(keys.wake("keeping"), "pause keeping")
        waiting = asyncio.create_task(bus.call("sibling"))
        await eventually(lambda: client.xlen(keys.queue("sibling")))
        release.set()
        assert (await kept).success
        assert (await asyncio.wait_for(waiting, 10)).output == "here"
    client.close()


class Streams:
    """Request streams with a group, filled by hand."""

    def __init__(self, place: Place, *depths: int) -> None:
        self.redis = redis.Redis.from_url(place.settings.url)
        self.keys = [Keys(place.settings.namespace).queue(f"stream{number}") for number in range(len(depths))]
        for key, depth in zip(self.keys, depths, strict=True):
            self.redis.xgroup_create(key, "g", "0", mkstream=True)
            self.redis.expire(key, 60)
            for number in range(depth):
                self.redis.xadd(key, {"r": number})

    def take(self, most: int) -> tuple[int, list[Any]]:
        """Run the script; which stream had the last turn, and how many entries each gave, or its error."""
        last, *found = self.redis.eval(scripts.TAKE.source, len(self.keys), *self.keys, "me", most)  # type: ignore[misc]
        return last, [len(each) if isinstance(each, list) else each for each in found]


@pytest.mark.parametrize(
    ("depths", "most", "expected", "last"),
    [
        ((0, 0, 0), 5, [0, 0, 0], 3),
        ((9, 0, 0), 5, [5, 0, 0], 1),
        ((0, 9, 2), 8, [0, 6, 2], 2),
        ((9, 9, 9), 2, [1, 1, 0], 2),
        ((9, 9, 9), 7, [3, 2, 2], 1),
        ((1, 1, 1), 100, [1, 1, 1], 3),
    ],
)
async def test_streams_give_by_turns_what_there_is_room_for(
    place: Place, depths: tuple[int, ...], most: int, expected: list[int], last: int
) -> None:
    """The room is shared evenly, and what one stream leaves of it is the others'."""
    streams = Streams(place, *depths)
    assert streams.take(most) == (last, expected)
    streams.redis.close()


async def test_a_stream_that_cannot_be_read_keeps_nothing_from_the_others(place: Place) -> None:
    """Requests delivered from the other streams arrive, beside the error."""
    streams = Streams(place, 2, 2, 2)
    streams.redis.xgroup_destroy(streams.keys[1], "g")
    _, [first, error, third] = streams.take(10)
    assert (first, third) == (2, 2)
    assert error.startswith(b"NOGROUP")
    streams.redis.close()
