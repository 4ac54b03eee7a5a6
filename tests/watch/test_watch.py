"""Snapshots of a real namespace: what is in them, what can't be read, and a server that is away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolError, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.results import BrokerError
from toolbus.bus.watch.views import Snapshot
from toolbus.bus.watch.watch import Watch

pytestmark = pytest.mark.anyio


@tool(service="watched", effect="read")
async def work() -> str:
    """Work."""
    return "done"


@tool(service="watched", effect="read")
async def hold() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return ""


@tool(service="watched", effect="idempotent")
async def fail() -> str:
    """Fail."""
    raise ToolError("no luck")


TOOLS = (work, hold, fail)


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on a real server."""
    return Place(server, namespace)


async def sampled(watch: Watch, fits: Any) -> Snapshot:
    """Return the first snapshot that fits."""

    async def sample() -> Snapshot | None:
        found = await watch.sample()
        return found if fits(found) else None

    found: Snapshot = await eventually(sample, timeout=20.0)
    return found


async def test_a_snapshot_has_everything(place: Place) -> None:
    """Services with their rates, workers, tools, recent calls, confirmations and pins."""
    async with (
        place.worker(*TOOLS) as worker,
        place.bus() as bus,
        Watch(place.settings, patience=20.0) as watch,
        Admin(place.settings) as admin,
    ):
        await bus.wait_for_tool("hold")
        first = await watch.sample()
        assert (first.window, first.services[0].calls_per_s, first.problems) == (0.0, 0.0, ())
        await admin.pins.approve("work")
        asking = asyncio.create_task(admin.confirmations.ask(ConfirmationRequest("r1", "c1", "work", "Really?"), 20.0, address="agent a"))
        held = asyncio.create_task(bus.call("hold"))
        for _ in range(5):
            await bus.call("work")
        await bus.call("fail")
        found = await sampled(
            watch,
            lambda each: each.services[0].calls == 6 and each.services[0].running == each.instances[0].running == 1 and each.confirmations,
        )
        held.cancel()
        asking.cancel()
        await asyncio.gather(held, asking, return_exceptions=True)
    [service], [instance] = found.services, found.instances
    assert (service.id, service.live, service.workers, service.running, service.tools) == ("watched", True, 1, 1, 3)
    assert service.calls_per_s > service.failures_per_s > 0
    assert (instance.id, instance.answered, instance.calls, instance.failures) == (worker.instance, True, 6, 1)
    assert {each.name: (each.started, each.failures) for each in found.tools} == {"work": (5, 0), "hold": (1, 0), "fail": (1, 1)}
    assert [each.tool for each in found.recent] == ["fail", *["work"] * 5]
    assert [each.question for each in found.confirmations] == ["Really?"]
    assert [each.name for each in found.pins] == ["work"]
    assert found.silent == found.problems == ()


async def test_dead_letters_are_shown_while_they_are_there(place: Place) -> None:
    """They come and go with the queue's."""
    async with place.worker(*TOOLS), place.bus() as bus, Watch(place.settings) as watch, Admin(place.settings) as admin:
        await bus.wait_for_tool("hold")
        with redis.Redis.from_url(place.settings.url) as client:
            client.xadd(Keys(place.settings.namespace).queue("watched"), {"r": "junk", "d": "1"})
        found = await sampled(watch, lambda each: each.dead)
        assert [(each.queue, each.reason, each.call) for each in found.dead] == [("watched", "malformed", "")]
        await admin.dead_letters.drop("watched", found.dead[0].id)
        await sampled(watch, lambda each: not each.dead)


async def test_a_part_that_can_not_be_read_leaves_the_others(place: Place) -> None:
    """It is said which, and why."""
    keys = Keys(place.settings.namespace)
    async with place.worker(*TOOLS), place.bus() as bus, Watch(place.settings, patience=20.0) as watch:
        await bus.wait_for_tool("hold")
        with redis.Redis.from_url(place.settings.url) as client:
            client.set(keys.recent, "something else", ex=60)
        found = await sampled(watch, lambda each: each.problems)
        assert [each.partition(":")[0] for each in found.problems] == ["recent calls"]
        assert [each.id for each in found.services] == ["watched"]
        # The next call that is told of makes it anew.
        await bus.call("work")
        await sampled(watch, lambda each: each.recent and not each.problems)


async def test_it_goes_on_when_its_server_comes_back(namespace: str, fresh_server: Any) -> None:
    """A sample raises while the server is away; the watch needs nobody's help."""
    server: EmbeddedServer = fresh_server()
    place = Place(server.url, namespace)
    async with Watch(place.settings) as watch:
        await watch.sample()
        server.kill()
        for _ in range(2):
            with pytest.raises(BrokerError):
                await watch.sample()
        server.start()
        async with place.worker(*TOOLS):
            await sampled(watch, lambda each: each.instances)


async def test_a_cancelled_sample_leaves_the_watch_of_use(place: Place) -> None:
    """The next one connects anew."""
    with redis.Redis.from_url(place.settings.url) as client:
        # Nobody answers for it, so that samples take as long as their patience.
        client.zadd(Keys(place.settings.namespace).live, {"watched/gone-1-abc": 10**15 // 2})
        client.expire(Keys(place.settings.namespace).live, 60)
        async with Watch(place.settings, patience=0.3) as watch:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await watch.sample()
            assert (await watch.sample()).silent == ("gone-1-abc",)


async def test_a_server_that_refuses_writes_is_seen_at_once(fresh_server: Callable[..., EmbeddedServer]) -> None:
    """No step of a snapshot writes what the server would hold until the fault is over."""
    server = fresh_server()
    place = Place(server.url, "refusing")
    async with place.worker(work, lease=60.0):
        with redis.Redis.from_url(server.url) as client:
            client.config_set("min-replicas-to-write", 1)
        began = asyncio.get_running_loop().time()
        async with Watch(place.settings, patience=0.1) as watch:
            found = await watch.sample()
        # A link is given up after ten seconds.
        assert asyncio.get_running_loop().time() - began < 8
        with redis.Redis.from_url(server.url) as client:
            client.config_set("min-replicas-to-write", 0)
    assert any("NOREPLICAS" in fault for fault in found.faults)
    assert [each.id for each in found.services] == ["watched"]
