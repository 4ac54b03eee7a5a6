"""Failovers: what was acknowledged is kept, `once` work runs once, and dead or silent Sentinels and nodes cost little."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from tests.servers import eventually
from tests.topologies import Cluster, Watched, until
from toolbus import Settings, ToolBus, ToolResult, Worker, tool
from toolbus.bus.broker.lease import thread as leases
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport import link
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.embedded import HOST, EmbeddedServer
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

runs: Counter[str] = Counter()
KEY = Keys("default").live


@tool(service="failing", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="failing", effect="once")
async def pay(name: str) -> str:
    """Have an effect."""
    runs[name] += 1
    return f"paid {name}"


@pytest.fixture
def watched(tmp_path: Path, slow: None) -> Iterator[Watched]:
    """A primary, a replica and three Sentinels."""
    runs.clear()
    made = Watched(tmp_path, sentinels=3)
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Load:
    """Callers of every kind, and what was acknowledged to them."""

    def __init__(self, bus: ToolBus) -> None:
        self._bus = bus
        self._stop = asyncio.Event()
        self.answers = 0
        self.paid: dict[str, ToolResult] = {}
        self.put: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Call until the end of the block, and wait for every answer."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(self._echo())
                tasks.create_task(self._pay(number))
            tasks.create_task(self._put())
            try:
                yield
            finally:
                self._stop.set()

    async def _echo(self) -> None:
        while not self._stop.is_set():
            if (await self._bus.call("echo", {"text": "here"}, timeout=10.0)).success:
                self.answers += 1
            await asyncio.sleep(0.01)

    async def _pay(self, caller: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"{caller}-{number}"
            self.paid[name] = await self._bus.call("pay", {"name": name}, timeout=10.0, idempotency_key=name)
            await asyncio.sleep(0.02)

    async def _put(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"tool/item-{number}"
            with suppress(BrokerUnavailable):
                await self._bus.put(key, b'{"name":"item","type":"function","description":"An item.","service":"failing"}')
                self.put.add(key)
            await asyncio.sleep(0.02)


async def replaced(watched: Watched, load: Load, how: str) -> None:
    """Replace the primary in one way, and go on until it has been made a replica, or would have been heard of."""
    before = watched.master_port()
    if how == "planned":
        await asyncio.to_thread(watched.fail_over)
    else:
        os.kill(watched.primary.pid, signal.SIGSTOP)
    await eventually(lambda: watched.master_port() != before, timeout=30)
    if how == "hung":
        os.kill(watched.primary.pid, signal.SIGCONT)
    count = load.answers
    await eventually(lambda: load.answers > count + 20, timeout=30)
    await eventually(lambda: _is_replica(watched.primary.url), timeout=40, interval=0.1)


def _count(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(getattr(line, FIELDS, {}).get("event") == event for line in caplog.records)


def _is_replica(url: str) -> bool:
    # The Sentinel that demotes a server cuts off its clients.
    with suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
        return bool(client.info("replication")["role"] == "slave")  # type: ignore[index]
    return False


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("how", ["planned", "hung"])
async def test_what_was_acknowledged_outlives_a_failover(watched: Watched, how: str, replicas: int) -> None:
    """Items are where they were put, and a `once` call made again with its key runs no second time, at old callers and new ones."""
    settings = Settings.load({}, url=watched.url, lease=3.0, wait_replicas=replicas)
    async with Worker([echo, pay], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        load = Load(bus)
        async with load.running():
            await eventually(lambda: len(load.paid) > 30 and len(load.put) > 10, timeout=30)
            await replaced(watched, load, how)
        names = [name for name, result in load.paid.items() if result.success]
        async with ToolBus(settings=settings) as newcomer:
            await newcomer.wait_for_tool("pay")
            again = [caller.call("pay", {"name": name}, idempotency_key=name) for name in names[-100:] for caller in (bus, newcomer)]
            await asyncio.gather(*again)
    assert [name for name, times in runs.items() if times > 1] == []
    for name, result in load.paid.items():
        if result.success:
            assert runs[name] == 1
        elif result.error is not None and result.error.type != "outcome_unknown":
            assert not runs[name], result
    with redis.Redis.from_url(watched.replica.url, decode_responses=True) as client:
        assert load.put - set(client.hkeys(Keys("default").items)) == set()


async def test_the_lease_thread_moves_with_the_links(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat that hangs at the old master is given up, and the next one is at the new one, long before the lease would want it."""
    monkeypatch.setattr(leases, "_READ_TIMEOUT", 600.0)
    settings = Settings.load({}, url=watched.url, lease=600.0)
    async with Worker([echo], settings=settings) as worker:

        def lease() -> float:
            # A replica that is promoted cuts off its clients, also in the middle of a command.
            with suppress(redis.ConnectionError), redis.Redis.from_url(watched.replica.url) as client:
                return float(client.zscore(KEY, f"failing/{worker.instance}") or 0)  # type: ignore[arg-type]
            return 0.0

        until(lease)
        os.kill(watched.primary.pid, signal.SIGSTOP)
        before = lease()
        worker.broker.steps.leases.nudge()  # type: ignore[attr-defined]
        await eventually(lambda: lease() > before, timeout=30, interval=0.1)


async def test_without_a_majority_once_work_waits_and_other_work_goes_on(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows then whether the server is still the master: a `once` call that waits until its deadline certainly never ran."""
    settings = Settings.load({}, url=watched.url, lease=3.0)
    async with Worker([echo, pay], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        assert (await bus.call("pay", {"name": "before"})).success
        caplog.clear()
        for process in watched.sentinels[:2]:
            process.send_signal(signal.SIGSTOP)
        # The worker and the agent each notice for themselves.
        await eventually(lambda: _count(caplog, "server.doubtful") >= 2, timeout=60)
        for key in ("", "k"):
            late = await bus.call("pay", {"name": "late"}, timeout=0.5, idempotency_key=key)
            assert late.error is not None
            assert late.error.type == "deadline_exceeded"
        assert (await bus.call("echo", {"text": "meanwhile"})).output == "meanwhile"
        patient = [asyncio.create_task(bus.call("pay", {"name": f"patient{key}"}, timeout=30.0, idempotency_key=key)) for key in ("", "p")]
        for process in watched.sentinels[:2]:
            process.send_signal(signal.SIGCONT)
        assert [(await call).output for call in patient] == ["paid patient", "paid patientp"]
    assert (runs["late"], runs["patient"], runs["patientp"]) == (0, 1, 1)


async def test_once_work_that_no_replica_confirms_does_not_run(url: str, namespace: str) -> None:
    """With TOOLBUS_WAIT_REPLICAS a server without them runs no `once` call and says so for certain; a put says that it may be lost."""
    runs.clear()
    settings = Settings.load({}, url=url, namespace=namespace, wait_replicas=1, wait_timeout=0.1)
    async with Worker([echo, pay], settings=settings), ToolBus(settings=settings) as bus:
        assert (await bus.call("echo", {"text": "anyway"}, wait=5.0)).output == "anyway"
        refused = await asyncio.gather(*(bus.call("pay", {"name": "nothing"}) for _ in range(5)))
        with pytest.raises(BrokerUnavailable, match="fewer than 1 replicas"):
            await bus.put("tool/x", b'{"name":"x","description":"X.","service":"failing"}')
        with suppress(BrokerUnavailable):
            await bus.delete("tool/x")
    assert {(result.error.type, result.error.code) for result in refused if result.error} == {("unavailable", "not_replicated")}
    assert not runs


async def test_many_once_calls_share_a_wait() -> None:
    """Calls of ``once`` work that begin together are confirmed together: there are fewer WAITs than calls."""
    runs.clear()
    primary, replica = (EmbeddedServer(config={"repl-diskless-sync-delay": "0"}) for _ in range(2))
    with primary, replica, redis.Redis.from_url(replica.url) as client, redis.Redis.from_url(primary.url) as asked:
        client.replicaof(HOST, primary.port)
        until(lambda: client.info("replication")["master_link_status"] == "up")
        settings = Settings.load({}, url=primary.url, wait_replicas=1)
        async with Worker([pay], settings=settings), ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("pay")
            results = await asyncio.gather(*(bus.call("pay", {"name": f"n{number}"}) for number in range(200)))
            waits = asked.info("commandstats")["cmdstat_wait"]["calls"]
    assert {result.success for result in results} == {True}
    assert waits < 100


# -- looking for the server -----------------------------------------------------------------------


async def connecting(url: str) -> float:
    """Seconds that the slower of a link and the lease thread needs to find the server and connect."""
    connector = Connector(url, key=KEY)
    began = time.monotonic()
    connection, _ = await connector.connect()
    middle = time.monotonic()
    await connection.disconnect()
    with connector.sync_client(5.0) as client:
        client.ping()
    return max(middle - began, time.monotonic() - middle)


async def test_dead_and_hung_sentinels_cost_little(watched: Watched) -> None:
    """One of three is dead, then another hangs: the third one is asked beside them. Ten attempts at each were 19 s."""
    watched.sentinels[0].kill()
    assert await connecting(watched.url) < 3
    watched.sentinels[1].send_signal(signal.SIGSTOP)
    assert await connecting(watched.url) < 3


@pytest.fixture
def cluster(slow: None) -> Iterator[Cluster]:
    """Three masters."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        for node in made.nodes:
            if node.running:
                os.kill(node.pid, signal.SIGCONT)
        made.stop()


async def test_dead_and_hung_cluster_nodes_cost_little(cluster: Cluster) -> None:
    """The nodes that the URL names first are dead and hung: the one that knows is asked beside them."""
    owner = cluster.owner(key_slot(KEY.encode()))
    dead, hung = (node for node in cluster.nodes if node is not owner)
    url = f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in (dead, hung, owner))}"
    dead.kill()
    assert await connecting(url) < 3
    os.kill(hung.pid, signal.SIGSTOP)
    assert await connecting(url) < 3


async def test_a_hung_cluster_node_is_left_when_another_serves_the_slot(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells of it, and the connections stay open: a server that owes an answer is asked about at the others."""
    monkeypatch.setattr(link, "_STALLED", 600.0)
    slot = key_slot(KEY.encode())
    source = cluster.owner(slot)
    target, third = (node for node in cluster.nodes if node is not source)
    settings = Settings.load({}, url=f"redis+cluster://{HOST}:{third.port},{HOST}:{target.port}", lease=1.0)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("echo")
        os.kill(source.pid, signal.SIGSTOP)
        # What a replica that takes over would do.
        with cluster.client(target) as taking, cluster.client(third) as told:
            name = taking.execute_command("CLUSTER MYID").decode()
            for client in (taking, told):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", name)

        await eventually(_answers(bus), timeout=30)


def _answers(bus: ToolBus) -> Callable[[], object]:
    async def answers() -> bool:
        return (await bus.call("echo", {"text": "after"}, timeout=1.0)).output == "after"

    return answers
