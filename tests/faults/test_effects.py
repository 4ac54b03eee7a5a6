"""Work that must not happen twice, while servers freeze, die, forget, and time runs out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
import redis

from tests.contract import Place
from tests.forking import ForkServer
from tests.servers import eventually, put_down
from toolbus import ErrorInfo, Settings, ToolBus, ToolResult, Worker, tool
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio

FreshServer = Callable[..., EmbeddedServer]

runs: list[str] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    """Forget what earlier tests ran."""
    runs.clear()


@tool(service="effects", effect="once")
async def pay(name: str, seconds: float = 0.0) -> str:
    """Have an effect."""
    runs.append(name)
    await asyncio.sleep(seconds)
    return f"paid {name}"


@tool(service="effects", effect="read")
async def look(name: str) -> str:
    """Have none."""
    runs.append(name)
    return f"saw {name}"


def error_of(result: ToolResult) -> ErrorInfo:
    """The error of a result that must have one."""
    assert result.error is not None
    return result.error


def settings_of(server: EmbeddedServer, **changes: object) -> Settings:
    """Settings for a server of the test's own."""
    return Settings.load({}, url=server.url, lease=1.0, grace=1.0, **changes)


def freeze(server: EmbeddedServer) -> None:
    """Stop the server in its tracks: what is written to it stays unanswered."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_lost_answer_to_a_publication_is_unknown_for_once_work_only(fresh_server: FreshServer, kept: bool) -> None:
    """The server dies with the publication unanswered: once work may have happened, other work is published again."""
    server = fresh_server(appendonly=kept)
    settings = settings_of(server)
    async with Worker([pay, look], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        freeze(server)
        calls = [asyncio.create_task(bus.call(name, {"name": name}, timeout=30.0)) for name in ("pay", "look")]
        await eventually(lambda: bus.statistics()["published"] == 2)
        server.kill()
        server.start()
        paid, seen = await asyncio.gather(*calls)
        assert error_of(paid).type == "outcome_unknown"
        if kept:
            assert seen.output == "saw look"
        else:
            # Its queue is gone with the server's memory, until the worker has registered again.
            assert seen.output == "saw look" or error_of(seen).type == "unavailable"
    assert "pay" not in runs


async def test_a_call_given_up_while_there_is_no_server_certainly_never_ran(fresh_server: FreshServer) -> None:
    """It was never written, so once work ends as deadline_exceeded, and is not published when the server is back."""
    server = fresh_server(appendonly=True)
    settings = settings_of(server)
    async with Worker([pay, look], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        server.kill()
        await eventually(lambda: not bus.statistics()["connected"])
        result = await bus.call("pay", {"name": "early"}, timeout=0.3)
        assert error_of(result).type == "deadline_exceeded"
        waits = asyncio.create_task(bus.call("pay", {"name": "patient"}, timeout=30.0))
        server.start()
        assert (await waits).output == "paid patient"
    assert runs == ["patient"]


def take_back(server: EmbeddedServer, service: str) -> None:
    """Restart the server with a state from before the work began: a queued request, and no trace of its beginning."""
    client = redis.Redis.from_url(server.url)
    queue = f"tb:{{default}}:q:{service}"
    assert client.xlen(queue) == 1
    client.xgroup_destroy(queue, "g")
    client.xgroup_create(queue, "g", "0")
    for key in client.scan_iter("tb:{default}:started:*"):
        client.delete(key)
    client.save()
    client.close()
    server.kill()
    server.start()


@pytest.mark.usefixtures("slow")
async def test_once_work_restored_from_a_snapshot_is_not_run(fresh_server: FreshServer) -> None:
    """A server that comes back with an older state has forgotten that the work began: its worker knows, and answers."""
    server = fresh_server(config={"save": "3600 1"})
    settings = settings_of(server)
    async with Worker([pay, look], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        call = asyncio.create_task(bus.call("pay", {"name": "pay", "seconds": 8.0}, timeout=40.0))
        await eventually(lambda: runs == ["pay"])
        take_back(server, "effects")
        assert (await call).output == "paid pay"
    assert runs == ["pay"]


async def test_once_work_that_server_and_worker_forget_is_not_run(fresh_server: FreshServer, forks: ForkServer) -> None:
    """When its worker is gone, too, nobody knows whether the work was done, so nobody runs it."""
    server = fresh_server(config={"save": "3600 1"})
    command = ("-m", "tests.faults.serve", server.url, "default", "1.0")
    first = forks.start(*command)
    second = None
    try:
        async with ToolBus(settings=settings_of(server)) as bus:
            await bus.wait_for_tool("pay", timeout=20)
            call = asyncio.create_task(bus.call("pay", {"seconds": 20.0}, timeout=40.0))
            client = redis.Redis.from_url(server.url)
            await eventually(lambda: list(client.scan_iter("tb:{default}:started:*")), timeout=10)
            service = next(iter(client.scan_iter("tb:{default}:q:*"))).decode().rpartition(":")[2]
            client.close()
            first.kill()
            take_back(server, service)
            second = forks.start(*command)
            assert error_of(await call).type == "outcome_unknown"
    finally:
        for process in filter(None, (first, second)):
            put_down(process)


@pytest.mark.usefixtures("slow")
async def test_once_work_that_waits_while_the_server_restarts_is_not_run(fresh_server: FreshServer) -> None:
    """Nobody knows that the new process has everything that the old one had; what had begun ends as it would have."""
    server = fresh_server(appendonly=True, config={"appendfsync": "always"})
    settings = settings_of(server)
    async with Worker([pay], settings=settings, concurrency=1), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        first = asyncio.create_task(bus.call("pay", {"name": "first", "seconds": 3.0}, timeout=30.0))
        await eventually(lambda: runs == ["first"])
        second = asyncio.create_task(bus.call("pay", {"name": "second"}, timeout=30.0))
        client = redis.Redis.from_url(server.url)
        await eventually(lambda: client.xlen("tb:{default}:q:effects") == 2)
        client.close()
        server.kill()
        server.start()
        assert (await first).output == "paid first"
        assert error_of(await second).type == "outcome_unknown"
    assert runs == ["first"]


async def test_once_work_whose_time_is_up_says_whether_it_may_have_happened(place: Place) -> None:
    """Running when the deadline passes it ends as outcome_unknown; queued, as deadline_exceeded, and it never runs."""
    async with place.worker(pay, concurrency=1), place.bus() as bus:
        await bus.wait_for_tool("pay")
        running = asyncio.create_task(bus.call("pay", {"name": "running", "seconds": 2.0}, timeout=1.0))
        await eventually(lambda: runs == ["running"])
        queued = asyncio.create_task(bus.call("pay", {"name": "queued"}, timeout=0.3))
        assert error_of(await queued).type == "deadline_exceeded"
        assert error_of(await running).type == "outcome_unknown"
        assert (await bus.call("pay", {"name": "next"})).output == "paid next"
    assert runs == ["running", "next"]


@pytest.mark.usefixtures("slow")
async def test_a_paused_agent_still_learns_that_once_work_is_unknown(place: Place) -> None:
    """When no worker says anything until the deadline the caller finds out by itself, within about a second."""
    async with place.bus() as bus:
        worker = place.worker(pay)
        await worker.__aenter__()
        await bus.wait_for_tool("pay")
        call = asyncio.create_task(bus.call("pay", {"name": "mute", "seconds": 30.0}, timeout=1.5))
        await eventually(lambda: runs == ["mute"])
        # Deaf and mute from here on: nothing it says arrives.
        client = redis.Redis.from_url(place.settings.url)
        client.xgroup_destroy(f"tb:{{{place.settings.namespace}}}:q:effects", "g")
        client.delete(f"tb:{{{place.settings.namespace}}}:q:effects")
        client.close()
        assert error_of(await call).type == "outcome_unknown"
        await worker.drain()


async def test_what_the_server_refused_for_longer_than_a_call_may_take_never_runs(fresh_server: FreshServer) -> None:
    """Calls whose time was up while the server refused every write are not published when it takes writes again."""
    server = fresh_server()
    settings = settings_of(server)
    async with Worker([pay, look], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        with redis.Redis.from_url(server.url) as client:
            client.config_set("min-replicas-to-write", 1)
            late = [
                bus.call(tool, {"name": f"{tool} {key}"}, timeout=0.3, **key)
                for tool in ("pay", "look")
                for key in ({}, {"idempotency_key": tool})
            ]
            later = asyncio.create_task(bus.call("pay", {"name": "in time"}, timeout=20))
            ended = await asyncio.gather(*late)
            client.config_set("min-replicas-to-write", 0)
        assert not any(result.success for result in ended)
        assert (await later).success
        # Everything was sent in the order of the calls, so that what waited before has been told.
        assert (await bus.call("look", {"name": "after"})).success
        assert runs == ["in time", "after"]
