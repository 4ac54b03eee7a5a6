"""Groups that an operator moves (``XGROUP``): back over requests that run, forward over those that wait, and without a consumer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import tool
from toolbus.bus.broker.lease.recover import Upkeep
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.intake import Intake

pytestmark = pytest.mark.anyio


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[Upkeep]:
    """Count how often each worker has begun to read with what a turn of its upkeep had found."""
    found: Counter[Upkeep] = Counter()
    fresh: set[Upkeep] = set()
    turn, read = Upkeep.turn, Intake._read

    async def found_out(upkeep: Upkeep, **options: Any) -> None:
        await turn(upkeep, **options)
        fresh.add(upkeep)

    async def counted(intake: Intake, *args: Any) -> Any:
        found[intake.upkeep] += intake.upkeep in fresh
        fresh.discard(intake.upkeep)
        return await read(intake, *args)

    monkeypatch.setattr(Upkeep, "turn", found_out)
    monkeypatch.setattr(Intake, "_read", counted)
    return found


class Held:
    """Handlers that run until they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    def tools(self) -> list[Any]:
        """Two tools that wait and one that does not, of one service."""

        @tool(service="held", effect="read", replace=True)
        async def look(name: str) -> str:
            """Wait."""
            self.begun.append(name)
            await self.gate.wait()
            return name

        @tool(service="held", effect="once", replace=True)
        async def pay(name: str) -> str:
            """Wait, and never twice."""
            self.begun.append(name)
            await self.gate.wait()
            return name

        @tool(service="held", effect="read", replace=True)
        async def quick() -> str:
            """Wake those who wait for requests."""
            return "quick"

        return [look, pay, quick]


async def passed_again(client: redis.Redis, queue: str) -> None:
    """Wait until a group that was set back stands behind what it had delivered."""

    def position() -> Any:
        return client.xinfo_groups(queue)[0]["last-delivered-id"] != b"0-0"

    await eventually(position)


async def both_go_on(turns: Counter[Upkeep]) -> None:
    """Wait until both workers have looked for what is to be taken over, and read with what they found."""
    before = turns.copy()
    await eventually(lambda: len(turns) == 2 and all(turns[upkeep] > before[upkeep] + 1 for upkeep in turns), timeout=30)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", ["look", "pay"])
async def test_what_runs_does_not_begin_again(place: Place, turns: Counter[Upkeep], name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither at another worker nor at its own, nor does it end; its result arrives, and the log says what happened."""
    held = Held()
    tools = held.tools()
    client = redis.Redis.from_url(place.settings.url)
    queue = Keys(place.settings.namespace).queue("held")
    async with place.serving(*tools, lease=1.5) as bus, place.worker(*tools, lease=1.5):
        await bus.wait_for_tool(name)
        running = [asyncio.create_task(bus.call(name, {"name": str(number)})) for number in range(6)]
        await eventually(lambda: len(held.begun) == 6)
        await both_go_on(turns)
        with caplog.at_level(logging.ERROR, "toolbus"):
            client.xgroup_setid(queue, "g", "0")
            assert (await bus.call("quick")).output == "quick"
            await passed_again(client, queue)
            # Everyone renews what is theirs.
            await both_go_on(turns)
        assert not any(task.done() for task in running)
        assert sorted(held.begun) == list("012345")
        held.gate.set()
        results = await asyncio.gather(*running)
        assert [(result.output, result.meta.attempts) for result in results] == [(each, 1) for each in "012345"]
        assert client.xlen(queue) == 0
    assert "requests.delivered_again" in caplog.text
    client.close()


async def test_once_work_that_began_a_moment_ago_is_left_alone(place: Place) -> None:
    """Also by a worker that had no time to hear of it: its mark shows that it runs."""
    held = Held()
    tools = held.tools()
    client = redis.Redis.from_url(place.settings.url)
    queue = Keys(place.settings.namespace).queue("held")
    async with place.serving(*tools, lease=30.0) as bus, place.worker(*tools, lease=30.0):
        await bus.wait_for_tool("pay")
        running = [asyncio.create_task(bus.call("pay", {"name": str(number)})) for number in range(6)]
        await eventually(lambda: len(held.begun) == 6)
        client.xgroup_setid(queue, "g", "0")
        assert (await bus.call("quick")).output == "quick"
        await passed_again(client, queue)
        held.gate.set()
        assert [result.output for result in await asyncio.gather(*running)] == list("012345")
        assert sorted(held.begun) == list("012345")
    client.close()


@pytest.mark.usefixtures("slow")
async def test_what_a_group_passed_over_runs(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Requests that wait behind a group's position were never delivered, so they wait for workers to find them."""
    held = Held()
    tools = held.tools()
    client = redis.Redis.from_url(place.settings.url)
    keys = Keys(place.settings.namespace)
    async with place.serving(*tools, lease=1.0, concurrency=1) as bus:
        await bus.wait_for_tool("look")
        calls = [asyncio.create_task(bus.call("look", {"name": str(number)}, timeout=30.0)) for number in range(40)]
        await eventually(lambda: held.begun and client.xlen(keys.queue("held")) == 40)
        client.xgroup_setid(keys.queue("held"), "g", "$")
        held.gate.set()
        assert [(await call).output for call in calls] == [str(number) for number in range(40)]
        assert sorted(held.begun, key=int) == [str(number) for number in range(40)]
        assert client.xlen(keys.queue("held")) == 0
    assert "requests.passed_over" in caplog.text
    client.close()


@pytest.mark.usefixtures("slow")
async def test_what_runs_goes_on_when_its_consumer_is_deleted(place: Place, turns: Counter[Upkeep]) -> None:
    """Its worker has it pending again with the next renewal, so no other one begins it."""
    held = Held()
    tools = held.tools()
    client = redis.Redis.from_url(place.settings.url)
    queue = Keys(place.settings.namespace).queue("held")
    async with place.serving(*tools, lease=1.0) as bus, place.worker(*tools, lease=1.0):
        await bus.wait_for_tool("look")
        running = [asyncio.create_task(bus.call("look", {"name": str(number)})) for number in range(6)]
        await eventually(lambda: len(held.begun) == 6)
        for consumer in client.xinfo_consumers(queue, "g"):
            client.xgroup_delconsumer(queue, "g", consumer["name"])
        await eventually(lambda: client.xpending(queue, "g")["pending"] == 6)
        for _ in range(4):
            await both_go_on(turns)
        held.gate.set()
        assert [result.output for result in await asyncio.gather(*running)] == list("012345")
        assert sorted(held.begun) == list("012345")
        assert client.xlen(queue) == 0
    client.close()


async def test_a_read_that_is_answered_late_brings_new_requests(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody moved the group: a turn of upkeep, over the other connection, only heard of the delivery before the read did."""
    held = Held()
    held.gate.set()
    intakes: list[Intake] = []
    read = Intake._read

    async def seen(intake: Intake, *args: Any) -> Any:
        intakes.append(intake)
        return await read(intake, *args)

    monkeypatch.setattr(Intake, "_read", seen)
    async with place.serving(*held.tools(), lease=60.0) as bus:
        await bus.wait_for_tool("look")
        client = redis.Redis.from_url(place.settings.url)
        await eventually(lambda: bool(intakes))
        transport = intakes[0].links.blocking._transport  # type: ignore[attr-defined]
        transport.pause_reading()
        call = asyncio.create_task(bus.call("look", {"name": "here"}, timeout=30.0))
        await eventually(lambda: client.xpending(Keys(place.settings.namespace).queue("held"), "g")["pending"] == 1)
        await intakes[0].upkeep.recover()
        transport.resume_reading()
        assert (await call).output == "here"
        client.close()
    assert "requests.delivered_again" not in caplog.text
