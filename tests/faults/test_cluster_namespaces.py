"""Four namespaces on a cluster of three masters with replicas: all that callers do at once, while one master is killed."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.servers import eventually, leaks
from tests.topologies import Cluster, until
from toolbus import Settings, ToolBus, ToolResult, ToolService, Worker, invocation, tool
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import HOST, EmbeddedServer
from toolbus.bus.values.events import Started

# One process runs them all, since the cluster takes its time to start.
pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("cluster-namespaces")]

MANY = 30
WITHIN = 60.0
# What a call may end with whose master was killed.
LOST = {"unavailable", "deadline_exceeded", "outcome_unknown", "replies_lost", "stream_reset"}


class Replicated(Cluster):
    """Three masters, each with a replica that takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = [self._node() for _ in self.nodes]

    @property
    def url(self) -> str:
        """The URL for toolbus, which names all masters of the beginning."""
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.nodes)}"

    def start(self) -> None:
        """Start the masters, then a replica of each, and wait until all are synchronised."""
        super().start()
        for master, replica in zip(self.nodes, self.replicas, strict=True):
            replica.start()
            with self.client(self.nodes[0]) as first, self.client(master) as leading, self.client(replica) as client:
                # By default a replica waits five seconds for others before it is synchronised.
                leading.execute_command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
                name = leading.execute_command("CLUSTER MYID")
                first.execute_command("CLUSTER MEET", HOST, replica.port, replica._config["cluster-port"])
                until(lambda client=client, name=name: client.execute_command("CLUSTER REPLICATE", name))
                until(lambda client=client: b"master_link_status:up" in client.execute_command("INFO", "replication"))
        for node in (*self.nodes, *self.replicas):
            with self.client(node) as client:
                until(lambda client=client: client.execute_command("CLUSTER NODES").count(b"slave ") == len(self.replicas))
                until(lambda client=client: b"cluster_state:ok" in client.execute_command("CLUSTER INFO"))

    def masters(self) -> list[EmbeddedServer]:
        """The nodes that are masters now."""
        return [node for node in (*self.nodes, *self.replicas) if node.running and self._is_master(node)]

    def _is_master(self, node: EmbeddedServer) -> bool:
        with self.client(node) as client:
            return bool(client.execute_command("ROLE")[0] == b"master")

    def stop(self) -> None:
        """Stop all nodes."""
        for replica in self.replicas:
            replica.stop()
        super().stop()


@pytest.fixture(scope="module")
def four(slow: None) -> Iterator[tuple[Replicated, dict[str, EmbeddedServer]]]:
    """A cluster, and four namespaces with the masters that serve them; the first two share one."""
    made = Replicated()
    try:
        made.start()
        yield made, _namespaces(made)
    finally:
        made.stop()


def _namespaces(cluster: Replicated) -> dict[str, EmbeddedServer]:
    found: dict[str, EmbeddedServer] = {}
    wanted = [cluster.nodes[number] for number in (0, 0, 1, 2)]
    for name in (f"tenant-{number}" for number in itertools.count()):
        owner = cluster.owner(key_slot(Keys(name).live.encode()))
        if wanted and owner in wanted:
            wanted.remove(owner)
            found[name] = owner
        if not wanted:
            return dict(sorted(found.items(), key=lambda each: cluster.nodes.index(each[1])))
    raise AssertionError


class Tenant:
    """One namespace: a worker, a bus, callers of every kind, and what came of their calls."""

    def __init__(self, url: str, namespace: str) -> None:
        self.settings = Settings.load({}, url=url, namespace=namespace, lease=3.0, wait_replicas=1)
        self.namespace = namespace
        self.bus = ToolBus(settings=self.settings)
        self.ran: Counter[str] = Counter()
        self.stopped: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.failed: list[ToolResult] = []
        self.wrong: list[ToolResult] = []
        self.paid: dict[str, ToolResult] = {}
        self.stop = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the tools by two workers, and open the bus."""
        async with Worker(self.services(), settings=self.settings), Worker(self.services(), settings=self.settings), self.bus:
            for name in ("echo", "pay", "hold", "count", "more"):
                await self.bus.wait_for_tool(name, timeout=WITHIN)
            yield

    def services(self) -> list[Any]:
        """Tools that tell whose they are; those of all tenants have the same names."""
        mine = self.namespace

        @tool(service="all", effect="read")
        async def echo(text: str) -> str:
            return f"{mine} {text}"

        @tool(service="all", effect="once")
        async def pay(name: str) -> str:
            self.ran[name] += 1
            return f"{mine} {name}"

        @tool(service="all", effect="read")
        async def hold(name: str) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.add(name)
            return mine

        @tool(service="all", effect="read")
        async def count(n: int) -> Any:
            for number in range(n):
                yield f"{mine} {number} "
                await asyncio.sleep(0.005)

        return [echo, pay, hold, count, Basket(mine)]

    async def load(self, number: int) -> None:
        """Call everything in turn, until told to stop."""
        mine = self.namespace
        for turn in itertools.count():
            if self.stop.is_set():
                return
            name, session = f"{number}-{turn}", f"s{number}-{turn // 3}"
            self._note("echo", await self.bus.call("echo", {"text": name}, timeout=10.0), f"{mine} {name}")
            self._note("count", await self.bus.call("count", {"n": 3}, timeout=10.0), "".join(f"{mine} {n} " for n in range(3)))
            paid = self.paid[name] = await self.bus.call("pay", {"name": name}, timeout=10.0)
            self._note("pay", paid, f"{mine} {name}")
            # A session whose worker's master was lost may begin anew.
            self._note("more", await self.bus.call("more", user="ann", session=session, timeout=10.0), f"{mine} ann {session}")
            await self._cancel(name)

    async def _cancel(self, name: str) -> None:
        """Cancel a call that runs."""
        async with self.bus.stream("hold", {"name": name}, timeout=10.0) as call:
            async for event in call.events():
                if isinstance(event, Started):
                    self.ended["hold"] += 1
                    break

    def _note(self, what: str, result: ToolResult, expected: str) -> None:
        if not result.success:
            self.failed.append(result)
        elif result.output != expected:
            self.wrong.append(result)
        else:
            self.ended[what] += 1

    def least(self) -> int:
        """The number of turns that every kind of call has had."""
        return min(self.ended[what] for what in ("echo", "count", "pay", "more", "hold"))


class Basket(ToolService):
    """Tells of whom a session is."""

    id = "baskets"
    sticky_sessions = True

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    @tool(effect="read")
    async def more(self) -> str:
        """Tell of whom the session is."""
        call = invocation()
        return f"{self._namespace} {call.user} {call.session}"


async def test_a_killed_master_harms_its_own_namespaces_only(four: tuple[Replicated, dict[str, EmbeddedServer]]) -> None:
    """The other namespaces answer every call meanwhile; its own heal with its replica; nothing is left, and nobody sees another's."""
    cluster, owners = four
    assert len(set(owners.values())) == 3
    tenants = {namespace: Tenant(cluster.url, namespace) for namespace in owners}
    *others, last = tenants.values()
    victim = owners[last.namespace]
    async with AsyncExitStack() as stack:
        for tenant in tenants.values():
            await stack.enter_async_context(tenant.serving())
        callers = [asyncio.create_task(tenant.load(number)) for tenant in tenants.values() for number in range(2)]
        await eventually(lambda: all(tenant.least() > 10 for tenant in tenants.values()), timeout=WITHIN)
        _each_at_home(cluster, owners)
        victim.kill()
        # Longer than it takes until the replica is the master.
        before = {tenant.namespace: tenant.least() for tenant in others}
        await eventually(lambda: len(cluster.masters()) == 3, timeout=WITHIN, interval=0.2)
        await eventually(lambda: all(tenant.least() > before[tenant.namespace] + 10 for tenant in others), timeout=WITHIN)
        # It comes back as the replica of what has taken its place; without one, `once` work would wait.
        await asyncio.to_thread(victim.start)
        healed = last.least()
        await eventually(lambda: last.least() > healed + 10, timeout=WITHIN)
        for tenant in tenants.values():
            tenant.stop.set()
        await asyncio.gather(*callers)
        cancelled = {tenant.namespace: tenant.ended["hold"] for tenant in others}
        # What was cancelled is stopped at the worker.
        await eventually(lambda: all(len(tenant.stopped) >= cancelled[tenant.namespace] for tenant in others), timeout=WITHIN)
    assert [tenant.wrong for tenant in tenants.values()] == [[]] * 4
    assert [tenant.failed for tenant in others] == [[]] * 3
    assert {result.error.type for result in last.failed if result.error is not None} <= LOST
    for tenant in tenants.values():
        assert [name for name, times in tenant.ran.items() if times > 1] == []
        assert {name for name, result in tenant.paid.items() if result.success} <= tenant.ran.keys()
    _nothing_left(cluster, owners)


def _each_at_home(cluster: Replicated, owners: dict[str, EmbeddedServer]) -> None:
    """Check that every key of a master is of a namespace that it serves."""
    for node in cluster.nodes:
        with redis.Redis(HOST, node.port, decode_responses=True) as client:
            prefixes = {key.partition("}")[0] for key in client.scan_iter(count=1000)}
        assert prefixes == {f"tb:{{{namespace}" for namespace, owner in owners.items() if owner is node}


def _nothing_left(cluster: Replicated, owners: dict[str, EmbeddedServer]) -> None:
    """Check that no key of any namespace stays for ever."""
    assert len(cluster.masters()) == 3
    assert [leak for node in cluster.masters() for namespace in owners for leak in leaks(node.url, namespace)] == []


async def test_one_process_is_at_home_in_two_namespaces(four: tuple[Replicated, dict[str, EmbeddedServer]]) -> None:
    """It serves both and calls both; a handler of one calls the other; names that are the same in both stay apart."""
    cluster, owners = four
    here, there = (Tenant(cluster.url, namespace) for namespace in list(owners)[1:3])

    @tool(service="bridge", effect="read")
    async def across(text: str) -> str:
        return (await there.bus.call("echo", {"text": text}, timeout=WITHIN)).output

    async with here.serving(), there.serving(), Worker([across], settings=here.settings):
        await here.bus.wait_for_tool("across", timeout=WITHIN)
        calls = [
            bus.call(name, {"text": "x"}, timeout=WITHIN) for bus, name in ((here.bus, "across"), (here.bus, "echo"), (there.bus, "echo"))
        ]
        answers = [result.output for result in await asyncio.gather(*calls * MANY)]
        assert answers == [f"{there.namespace} x", f"{here.namespace} x", f"{there.namespace} x"] * MANY
        assert "across" not in there.bus.tools
        key = {"idempotency_key": "the same", "timeout": WITHIN}
        paid = await asyncio.gather(*(tenant.bus.call("pay", {"name": "once"}, **key) for tenant in (here, there) for _ in range(2)))
        assert [result.output for result in paid] == [f"{tenant.namespace} once" for tenant in (here, there) for _ in range(2)]
        assert here.ran["once"] == there.ran["once"] == 1
    _nothing_left(cluster, owners)


def test_doctor_examines_each_namespace_of_a_cluster(
    four: tuple[Replicated, dict[str, EmbeddedServer]], forks: ForkServer, tmp_path: Path
) -> None:
    """It finds the master that serves the namespace, and nothing wrong with it; the deep examination makes its calls there."""
    cluster, owners = four
    deep = list(owners)[-1]
    for namespace in owners:
        shell = Shell(forks, tmp_path, cluster.url, namespace)
        try:
            done = shell.run("doctor", *(["--deep"] if namespace == deep else []), "--output", "json")
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            shell.close()
    _nothing_left(cluster, owners)
