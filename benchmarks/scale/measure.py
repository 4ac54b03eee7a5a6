"""Measure the costs: real servers, workers and agents, by counters and CPU time, so that a busy machine changes little."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from benchmarks.adapters.contract import run
from benchmarks.places import cluster
from benchmarks.processes import Child, child
from benchmarks.scale import meter
from benchmarks.scale.costs import CallCost, Costs
from benchmarks.servers import RedisServer, redis_server
from benchmarks.snapshot import FORMS, TOOLS_EACH, publications, register
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.requests import GROUP

_STEP_SECONDS = 180.0
_SERVICE = "scale-0"
_FOREVER_MS = 3_600_000


class Size(NamedTuple):
    """The extent of the measurements.

    Attributes:
        rounds: repetitions of the calls, of which the median counts.
        calls: calls of a round.
        idle: seconds without a call.
        processes: idle workers and agents.
        services: services of the registry.
        changes: changes of the registry.
        reaps: reaps of each number of workers.
        messages: messages of a wake-up channel.
    """

    rounds: int = 3
    calls: int = 20_000
    idle: float = 30.0
    processes: int = 40
    services: int = 5_000
    changes: int = 200
    reaps: int = 300
    messages: int = 20_000


LEVELS = (1, 8, 64, 256)
QUICK = Size(rounds=1, calls=2_000, idle=5.0, processes=10, services=500, changes=50, reaps=50, messages=2_000)


def measure(size: Size, say: Callable[[str], None] = lambda _: None) -> Costs:
    """Measure everything; it takes about three minutes in full size."""
    with redis_server() as server:
        found: dict[str, Any] = {"machine": meter.machine(server)}
        for name, step in STEPS.items():
            say(name)
            server.reset()
            found |= step(server, size)
    say("messages between the masters of a cluster")
    found |= _messages(size)
    return msgspec.convert(found, Costs)


@contextlib.contextmanager
def started(side: str, url: str, namespaces: Sequence[str], **options: float) -> Iterator[Child]:
    """Run a process of workers or agents."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-P", "-m", "benchmarks.scale.programs", side, "--url", url, "--namespaces", ",".join(namespaces), *words]
    with child(side, command) as process:
        process.expect("ready", _STEP_SECONDS)
        yield process


def ask(process: Child, order: str) -> dict[str, Any]:
    """Give an order, and return the answer."""
    process.write(order)
    return json.loads(process.line(_STEP_SECONDS))


class Called(NamedTuple):
    """The cost of some calls: the server's counters, and CPU seconds of both processes."""

    server: meter.Reading
    agents: float
    workers: float


def call(server: RedisServer, namespaces: Sequence[str], calls: int, in_flight: int, workers: int = 1) -> Called:
    """Make calls in each namespace, from one agent each, with so many workers each."""
    with (
        started("workers", server.url, namespaces, each=workers) as serving,
        started("agents", server.url, namespaces, in_flight=in_flight) as asking,
    ):
        ask(asking, "found")
        ask(asking, f"call {max(calls // 10, 1)}")
        spent, before = ask(serving, "look")["spent"], meter.read(server.client)
        answer = ask(asking, f"call {calls}")
        made = meter.read(server.client).since(before)
        if answer["value"] != calls * len(namespaces):
            raise RuntimeError(f"only {answer['value']} of {calls * len(namespaces)} calls were answered")
        return Called(made, answer["cpu"], ask(serving, "look")["spent"] - spent)


def _calls(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure calls, at each number in flight."""
    costs = []
    for in_flight in LEVELS:
        # A call alone takes long, and its cost is the same for each.
        calls = size.calls if in_flight > 1 else max(size.calls // 5, 200)
        rounds = [call(server, ["calls"], calls, in_flight) for _ in range(size.rounds)]

        def median(value: Callable[[Called], float], rounds: list[Called] = rounds, calls: int = calls) -> float:
            return statistics.median(value(each) for each in rounds) / calls

        costs.append(
            CallCost(
                in_flight,
                server_us=median(lambda each: each.server.us),
                caller_us=median(lambda each: each.agents * 1e6),
                worker_us=median(lambda each: each.workers * 1e6),
                commands=median(lambda each: each.server.commands),
                bytes=median(lambda each: each.server.bytes),
            )
        )
    return {"calls": tuple(costs)}


def _idle(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure idle workers and agents."""
    services = 8
    nothing = _while_idle(server, size, None)
    worker = _while_idle(server, size, "workers")
    many = _while_idle(server, size, "workers", services=services)
    agent = _while_idle(server, size, "agents")

    def each(found: meter.Reading, field: str) -> float:
        return max(getattr(found, field) - getattr(nothing, field), 0.0) / size.processes

    return {
        "worker_us_per_s": each(worker, "us"),
        "service_us_per_s": max((each(many, "us") - each(worker, "us")) / (services - 1), 0.0),
        "agent_us_per_s": each(agent, "us"),
        "worker_bytes_per_s": each(worker, "bytes"),
        "agent_bytes_per_s": each(agent, "bytes"),
        "worker_connections": each(worker, "connections"),
        "agent_connections": each(agent, "connections"),
        "worker_bytes": each(worker, "memory"),
        "agent_bytes": each(agent, "memory"),
    }


def _while_idle(server: RedisServer, size: Size, side: str | None, **options: float) -> meter.Reading:
    """Return CPU time and bytes per second while nothing is called, and what the processes add to memory and connections."""
    server.reset()
    empty = meter.settled(server.client)
    with contextlib.ExitStack() as stack:
        if side is not None:
            # Each in a namespace of its own: what workers of one service do to each other is measured apart.
            names = [f"idle-{number}" for number in range(size.processes)]
            stack.enter_context(started(side, server.url, names, **options))
        before = meter.settled(server.client)
        time.sleep(size.idle)
        after = meter.read(server.client)
    spent, added = after.since(before), after.since(empty)
    # Buffers of new connections shrink after some seconds, so memory is looked at last.
    rates = (spent.us / spent.seconds, spent.commands / spent.seconds, spent.bytes / spent.seconds)
    return meter.Reading(*rates, memory=added.memory, connections=added.connections, seconds=1)


def _reaps(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure reaps, by the number of workers of a service."""
    few, many = (_reap(server, size.reaps, workers) for workers in (1, 501))
    return {"reap_us_per_worker": max((many - few) / 500, 0.0)}


def _reap(server: RedisServer, reaps: int, workers: int) -> float:
    """Return the microseconds of one reap, for a service of so many workers that run a call each."""
    server.reset()
    keys, client = Keys("reaps"), server.client
    queue, fence = keys.queue(_SERVICE), keys.fence(_SERVICE)
    client.xgroup_create(queue, GROUP, "0", mkstream=True)
    now = int(time.time() * 1000)
    client.hset(fence, mapping={"generation": "0.x"})
    client.set(keys.pulse, f"{now} 0")
    for number in range(workers):
        client.xgroup_createconsumer(queue, GROUP, f"worker-{number}")
        client.hset(fence, mapping={f"c:worker-{number}": 1, f"l:worker-{number}": 30_000})
        client.zadd(keys.live, {f"{_SERVICE}/worker-{number}": now + _FOREVER_MS})
        client.xadd(queue, {"r": "{}", "d": now + _FOREVER_MS})
        client.xreadgroup(GROUP, f"worker-{number}", {queue: ">"}, count=1)
    script = client.register_script(scripts.REAP.source)
    names, args = [queue, fence, keys.live, keys.pulse], ["worker-0", _SERVICE, 256, 30_000, 0, 1, 3, 0, keys.pause(_SERVICE, "")]
    script(names, args)
    before = meter.read(client)
    for _ in range(reaps):
        script(names, args)
    return meter.read(client).since(before).us / reaps


def _registry(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure registering, and an agent that reads the registry."""
    before = meter.settled(server.client)
    run(register(server.url, "registry", publications(FORMS["schema"], size.services)))
    filled = meter.settled(server.client)
    made, tools = filled.since(before), size.services * TOOLS_EACH
    with started("agents", server.url, ["empty"]) as agent:
        nothing = ask(agent, "look")
    # An agent that reads an empty registry costs something, too.
    first = meter.read(server.client)
    with started("agents", server.url, ["registry"]) as agent:
        known = ask(agent, f"tools {tools}")
    second = meter.read(server.client)
    opened, read = first.since(filled), second.since(first)
    return {
        "register_us": made.us / size.services,
        "tool_bytes": made.memory / tools,
        "snapshot_us_per_tool": max(read.us - opened.us, 0.0) / tools,
        "snapshot_bytes_per_tool": max(read.bytes - opened.bytes, 0) / tools,
        "agent_us_per_tool": (known["spent"] - nothing["spent"]) * 1e6 / tools,
        "agent_bytes_per_tool": (known["resident"] - nothing["resident"]) / tools,
    }


def _changes(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure changes of the registry that agents follow."""
    alone, told = (_change(server, size, agents) for agents in (0, size.processes))
    changes = size.changes * size.processes
    return {"change_us_per_agent": max(told.us - alone.us, 0.0) / changes, "change_bytes_per_agent": (told.bytes - alone.bytes) / changes}


def _change(server: RedisServer, size: Size, agents: int) -> meter.Reading:
    server.reset()
    with contextlib.ExitStack() as stack:
        if agents:
            stack.enter_context(started("agents", server.url, ["changes"], each=agents))
        before = meter.settled(server.client)
        # One after the other, each a publication of its own: a log that is read entry by entry.
        for publication in itertools.islice(publications(FORMS["schema"], size.changes), size.changes):
            run(register(server.url, "changes", iter([publication])))
        return meter.read(server.client).since(before)


def _queued(server: RedisServer, size: Size) -> dict[str, Any]:
    """Measure requests that wait."""
    keys, count = Keys("queued"), size.calls
    before = meter.settled(server.client)
    document = _document()
    with server.client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            pipeline.xadd(keys.queue("waiting"), {"r": document + b"%09d" % number, "d": 1_700_000_000_000})
        pipeline.execute()
    return {"queued_bytes": meter.settled(server.client).since(before).memory / count}


def _document() -> bytes:
    from toolbus.bus.values.envelope import Request, encode_request, new_id

    request = Request(new_id(), new_id(), _SERVICE, "echo", arguments={"text": "x" * 200})
    return encode_request(request, limit=1_000_000)


STEPS: dict[str, Callable[[RedisServer, Size], dict[str, Any]]] = {
    "calls": _calls,
    "idle workers and agents": _idle,
    "reaps": _reaps,
    "the registry": _registry,
    "changes of the registry": _changes,
    "queued requests": _queued,
}


def _messages(size: Size) -> dict[str, Any]:
    """Measure messages of wake-up channels at the masters that they are not published at."""
    with cluster("valkey") as made:
        first, *others = made.nodes
        resting = [meter.settled(node.client) for node in others]
        time.sleep(2.0)
        rest = [meter.read(node.client).since(then) for node, then in zip(others, resting, strict=True)]
        before = [meter.read(node.client) for node in others]
        with first.client.pipeline(transaction=False) as pipeline:
            for _ in range(size.messages):
                pipeline.publish("scale", "cancel " + "x" * 22)
            pipeline.execute()
        after = [meter.settled(node.client).since(then) for node, then in zip(others, before, strict=True)]
    spent = [max(each.us - each.seconds * idle.us / idle.seconds, 0.0) for each, idle in zip(after, rest, strict=True)]
    return {"publish_us": statistics.mean(spent) / size.messages}
