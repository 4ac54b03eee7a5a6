"""Sentinel and cluster: servers that change places while calls run. Real servers, started by the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.servers import eventually
from tests.topologies import Cluster, Watched, until
from toolbus import Session, Settings, ToolBus, ToolService, Worker, invocation, tool
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import HOST, EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

runs: list[str] = []


@tool(service="moving", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="moving", effect="read")
async def count(n: int, delay: float = 0.01) -> Any:
    """Count slowly."""
    for number in range(n):
        yield f"{number} "
        await asyncio.sleep(delay)


@tool(service="moving", effect="once")
async def pay(name: str) -> str:
    """Have an effect."""
    runs.append(name)
    return f"paid {name}"


class Kept(ToolService):
    """Counts the calls of each session, at the worker that has it."""

    id = "kept"
    sticky_sessions = True

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    @tool(effect="read")
    async def more(self) -> int:
        """Count a call."""
        call = invocation()
        self.counts[call.user, call.session] = self.counts.get((call.user, call.session), 0) + 1
        return self.counts[call.user, call.session]

    async def cleanup(self, session: Session | None = None) -> None:
        """Forget a session."""
        if session is not None:
            del self.counts[session]


@pytest.fixture
def watched(tmp_path: Path, slow: None) -> Iterator[Watched]:
    """A primary, a replica and a Sentinel."""
    made = Watched(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(slow: None) -> Iterator[Cluster]:
    """Three masters."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()


async def test_a_failover_by_sentinel_heals_by_itself(watched: Watched) -> None:
    """The primary dies under load: every call ends, calls succeed on the promoted replica, and once work runs at most once."""
    runs.clear()
    settings = Settings.load({}, url=watched.url, lease=1.0)
    async with Worker([echo, pay], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        stop, ended, paid = asyncio.Event(), [], []

        async def load(caller: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                name = f"{caller}-{number}"
                ended.append((name, await bus.call("echo", {"text": name}, timeout=5.0)))
                paid.append((name, await bus.call("pay", {"name": name}, timeout=5.0)))

        callers = [asyncio.create_task(load(number)) for number in range(10)]
        await eventually(lambda: len(paid) > 50)
        before = watched.master_port()
        watched.primary.kill()
        await eventually(lambda: watched.master_port() != before, timeout=20)

        async def healed() -> bool:
            return (await bus.call("echo", {"text": "after"}, timeout=1.0)).output == "after"

        await eventually(healed, timeout=15)
        stop.set()
        await asyncio.gather(*callers)
    for name, result in ended:
        assert result.output == name or (result.error is not None and result.error.type in {"deadline_exceeded", "unavailable"})
    for name, result in paid:
        assert runs.count(name) <= 1
        if result.success:
            assert runs.count(name) == 1
        else:
            assert result.error is not None
            assert result.error.type in {"outcome_unknown", "unavailable", "deadline_exceeded"}
            assert result.error.type == "outcome_unknown" or name not in runs


async def test_a_planned_switch_refuses_nothing_for_good(watched: Watched) -> None:
    """The primary becomes a replica and refuses writes: what it refused is carried out by the new one."""
    settings = Settings.load({}, url=watched.url, lease=1.0)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("echo")
        before = watched.master_port()
        await asyncio.to_thread(watched.fail_over)
        results = [await bus.call("echo", {"text": "during"}, timeout=20.0) for _ in range(20)]
        await eventually(lambda: watched.master_port() != before, timeout=20)
        results += [await bus.call("echo", {"text": "during"}, timeout=20.0) for _ in range(20)]
    assert {result.output for result in results} == {"during"}


async def test_a_plain_url_to_a_replica_is_refused_and_heals_when_it_is_promoted() -> None:
    """At the start it says what it found; later, a server that turns into a replica is waited for until it is a master again."""
    primary, server = EmbeddedServer(), EmbeddedServer()
    with primary, server, redis.Redis.from_url(server.url) as client:
        settings = Settings.load({}, url=server.url, lease=1.0)
        async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("echo")
            client.replicaof(HOST, primary.port)
            until(lambda: client.info("replication")["role"] == "slave")
            with pytest.raises(BrokerUnavailable, match="read-only replica"):
                await ToolBus(settings=settings).open()
            waiting = asyncio.create_task(bus.call("echo", {"text": "patient"}, timeout=30.0))
            client.replicaof("NO", "ONE")
            with suppress(AssertionError):
                # What the replica did not take over is registered anew first.
                assert (await waiting).output == "patient"

            async def healed() -> bool:
                return (await bus.call("echo", {"text": "after"}, timeout=1.0)).output == "after"

            await eventually(healed, timeout=15)


async def test_a_namespace_lives_in_one_slot_of_a_cluster(cluster: Cluster) -> None:
    """Workers and agents find the node by their namespace, whichever node the URL names."""
    for namespace in ("one", "two", "three", "four"):
        settings = Settings.load({}, url=cluster.url, namespace=namespace, lease=1.0)
        async with Worker([echo, count, pay], settings=settings), ToolBus(settings=settings) as bus:
            assert (await bus.call("echo", {"text": namespace}, wait=5.0)).output == namespace
            assert (await bus.call("count", {"n": 5})).output == "0 1 2 3 4 "
            assert (await bus.call("pay", {"name": namespace}, idempotency_key="k")).output == f"paid {namespace}"


async def test_sessions_work_in_a_cluster(cluster: Cluster) -> None:
    """Owners of sessions lie in the namespace's slot, and messages to the workers arrive whichever node they are published to."""
    settings = Settings.load({}, url=cluster.url, lease=1.0)
    services = [Kept(), Kept()]
    workers = [Worker(service, settings=settings, concurrency=4) for service in services]
    async with workers[0], workers[1], ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("more")

        async def converse(session: str) -> list[int]:
            return [(await bus.call("more", user="ann", session=session)).data for _ in range(5)]

        assert await asyncio.gather(*(converse(f"s{number}") for number in range(10))) == [[1, 2, 3, 4, 5]] * 10
        await bus.bind(user="ann", session="s0").close_session()
        await eventually(lambda: sum(len(service.counts) for service in services) == 9)


async def test_a_slot_that_moves_costs_no_call(cluster: Cluster) -> None:
    """While its keys are moved one by one to another node, calls and streams go on: ASK, TRYAGAIN and MOVED are followed."""
    keys = Keys("default")
    slot = key_slot(keys.live.encode())
    settings = Settings.load({}, url=cluster.url, lease=2.0)
    async with Worker([echo, count], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("count")
        stop, results = asyncio.Event(), []

        async def load() -> None:
            while not stop.is_set():
                results.append(await bus.call("count", {"n": 3, "delay": 0.02}, timeout=20.0))

        callers = [asyncio.create_task(load()) for _ in range(5)]
        await eventually(lambda: len(results) > 10)
        target = await asyncio.to_thread(_move, cluster, slot)
        moved = len(results)
        await eventually(lambda: len(results) > moved + 20, timeout=20)
        stop.set()
        await asyncio.gather(*callers)
        assert cluster.owner(slot) is target
    failed = [result.error for result in results if result.output != "0 1 2 "]
    assert failed == []


def _move(cluster: Cluster, slot: int) -> EmbeddedServer:
    """Move a slot as a resharding does, slowly enough that much happens meanwhile; returns its new node."""
    source, target = cluster.begin_to_move(slot)
    with cluster.client(source) as leaving:
        while found := leaving.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            for key in found:
                leaving.execute_command("MIGRATE", HOST, target.port, key, 0, 5000)
                time.sleep(0.02)
    cluster.end_move(slot, target)
    return target
