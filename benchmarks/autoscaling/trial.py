"""Trials: a load on a pool that the controllers scale, a first call at an empty pool, and a busy pool that is cut in half."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import statistics
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import redis.asyncio

from benchmarks.autoscaling.hpa import SYNC_PERIOD, Autoscaler
from benchmarks.autoscaling.keda import Activation
from benchmarks.autoscaling.loads import SHAPES, arrivals
from benchmarks.autoscaling.policy import Policy
from benchmarks.autoscaling.pool import SERVICE, TOOL, Pool
from toolbus import ToolBus
from toolbus.bus.broker.server.keys import Keys

_SAMPLES = 0.05
_PATIENCE = 90.0


class Plan(NamedTuple):
    """The parts of a run that are the same for every policy.

    Attributes:
        slots: of one worker.
        seconds: that a call takes.
        workers: how many the greatest rate asks for.
        pace: seconds of the controllers' clock in a real one.
        seed: of the random numbers.
    """

    slots: int = 10
    seconds: float = 0.25
    workers: int = 6
    pace: float = 10.0
    seed: int = 1

    def rate(self, policy: Policy) -> float:
        """Return the greatest rate, in calls per second, at which so many workers are used as much as the policy wants."""
        return self.workers * policy.for_slots(self.slots).stream_length / self.seconds


class Outcome(msgspec.Struct):
    """The figures of one load.

    Attributes:
        load, policy: which.
        calls, failed: made, and not answered with a result.
        p50_ms, p99_ms: from the moment a call came to its answer.
        backlog: most requests that waited for a slot.
        workers: most that should run at once.
        changes: how often that number changed.
        cost: seconds of worker processes.
        fixed: seconds that a pool of the size for the greatest rate takes.
        killed: workers that ended in another way than by draining.
        start_ms: median from a worker's start until it serves.
    """

    load: str
    policy: Policy
    calls: int
    failed: int
    p50_ms: float
    p99_ms: float
    backlog: int
    workers: int
    changes: int
    cost: float
    fixed: float
    killed: int
    start_ms: float


class Calls:
    """Makes calls, each in a task of its own, and keeps how long they took."""

    def __init__(self, bus: ToolBus, seconds: float) -> None:
        self._bus = bus
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self.times: list[tuple[float, float]] = []
        self.errors: list[str] = []

    def call(self) -> None:
        """Make a call."""
        task = asyncio.create_task(self._call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """Wait for the calls that were made."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _call(self) -> None:
        began = time.monotonic()
        result = await self._bus.call(TOOL, {"seconds": self._seconds}, timeout=_PATIENCE)
        self.times.append((began, time.monotonic() - began))
        if not result.success:
            self.errors.append(str(result.error))

    def quantile(self, share: float, since: float = 0.0, until: float = math.inf) -> float:
        """Return the milliseconds within which a share of the calls that came in a time was answered."""
        found = sorted(took for began, took in self.times if since <= began < until)
        return found[min(len(found) - 1, int(share * len(found)))] * 1e3 if found else 0.0


class Place(NamedTuple):
    """The server, the pool and the caller of a trial."""

    pool: Pool
    bus: ToolBus
    client: Any
    queue: str

    async def length(self) -> int:
        """Return the length of the stream, which KEDA asks for."""
        return int(await self.client.xlen(self.queue))


@contextlib.asynccontextmanager
async def place(url: str, pool: Pool) -> AsyncIterator[Place]:
    """Start one worker, so that the service is known, and yield where trials run."""
    async with contextlib.AsyncExitStack() as stack:
        client = redis.asyncio.Redis.from_url(url)
        stack.push_async_callback(client.aclose)
        bus = await stack.enter_async_context(ToolBus(url))
        await stack.enter_async_context(pool)
        await pool.settled(1)
        await bus.wait_for_tool(TOOL, timeout=60)
        yield Place(pool, bus, client, Keys("default").queue(SERVICE))


async def scaled(at: Place, name: str, plan: Plan, given: Policy) -> Outcome:
    """Put a load on a pool that the controllers scale; return its figures."""
    policy, shape, pool = given.for_slots(plan.slots), SHAPES[name], at.pool
    await pool.settled(policy.min_replicas)
    calls, lives = Calls(at.bus, plan.seconds), len(pool.lives)
    began = time.monotonic()
    backlog, sizes = [0], [pool.size]

    async def controlled() -> None:
        await _control(at, policy, plan, began, sizes)

    async def sampled() -> None:
        while True:
            backlog.append(max(0, await at.length() - pool.serving * plan.slots))
            await asyncio.sleep(_SAMPLES)

    helpers = [asyncio.create_task(controlled()), asyncio.create_task(sampled())]
    try:
        for moment in arrivals(shape, plan.rate(Policy()), plan.pace, plan.seed):
            await asyncio.sleep(began + moment - time.monotonic())
            calls.call()
        await calls.ended()
        took = time.monotonic() - began
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.wait(helpers)
    await pool.settled(0)
    gone = pool.lives[lives:]
    starts = [life.served - life.began for life in gone if life.served]
    return Outcome(
        load=name,
        policy=given,
        calls=len(calls.times),
        failed=len(calls.errors),
        p50_ms=calls.quantile(0.5),
        p99_ms=calls.quantile(0.99),
        backlog=max(backlog),
        workers=max(sizes),
        changes=sum(one != other for one, other in pairwise(sizes)),
        cost=sum(min(life.ended, began + took) - max(life.began, began) for life in gone),
        fixed=plan.workers * took,
        killed=sum(life.killed for life in gone),
        start_ms=statistics.median(starts) * 1e3 if starts else 0.0,
    )


async def _control(at: Place, policy: Policy, plan: Plan, began: float, sizes: list[int]) -> None:
    """Let KEDA look at each of its intervals, and HPA decide at each of its periods, until it is cancelled."""
    activation, autoscaler = Activation(policy), Autoscaler(policy)
    # They were there before, at moments that have nothing to do with the load's.
    chance = random.Random(plan.seed)
    poll, sync = chance.random() * policy.polling_interval, chance.random() * SYNC_PERIOD
    while True:
        due = min(poll, sync)
        await asyncio.sleep(max(0.0, began + due / plan.pace - time.monotonic()))
        length, size = await at.length(), at.pool.size
        if due == poll:
            wanted = activation.look(due, size, length)
            autoscaler.changed(due, wanted - size)
            poll += policy.polling_interval
        else:
            wanted = autoscaler.decide(due, size, length)
            sync += SYNC_PERIOD
        at.pool.resize(wanted)
        sizes.append(wanted)


class First(msgspec.Struct):
    """The seconds from a call at an empty pool until KEDA looked, until the worker served, and until the answer; without the tool's own."""

    looked: float
    served: float
    answered: float


async def from_zero(at: Place, plan: Plan, given: Policy, tries: int) -> list[First]:
    """Call an empty pool a few times, by the real clock; return how long the first answers took."""
    chance, found = random.Random(plan.seed), []
    for _ in range(tries):
        await at.pool.settled(0)
        activation = Activation(given._replace(min_replicas=0))
        calls, began, lives = Calls(at.bus, 0.0), time.monotonic(), len(at.pool.lives)
        calls.call()
        await asyncio.sleep(chance.random() * given.polling_interval)
        while not await at.length():  # noqa: ASYNC110 - a look at the server
            # The look came before the call had reached the server; the next one finds it.
            await asyncio.sleep(given.polling_interval)
        looked = time.monotonic() - began
        at.pool.resize(activation.look(looked, at.pool.size, await at.length()))
        await calls.ended()
        if calls.errors:
            raise RuntimeError(f"the first call failed: {calls.errors[0]}")
        await at.pool.settled(0)
        found.append(First(looked, at.pool.lives[lives].served - began, calls.times[0][1]))
    return found


class Halved(msgspec.Struct):
    """The figures of a busy pool that was cut in half: before, while its workers drained and after."""

    workers: int
    calls: int
    failed: int
    killed: int
    before_p99_ms: float
    after_p99_ms: float


async def halved(at: Place, plan: Plan, given: Policy, seconds: float) -> Halved:
    """Let half of a pool drain under a steady load that the other half can bear; return what callers saw."""
    full = 2 * max(1, plan.workers // 2)
    await at.pool.settled(full)
    lives, calls, chance = len(at.pool.lives), Calls(at.bus, plan.seconds), random.Random(plan.seed)
    rate = full / 2 * given.for_slots(plan.slots).stream_length / plan.seconds
    began, moment, cut = time.monotonic(), 0.0, False
    while (moment := moment + chance.expovariate(rate)) < 2 * seconds:
        await asyncio.sleep(began + moment - time.monotonic())
        if not cut and moment >= seconds:
            at.pool.resize(full // 2)
            cut = True
        calls.call()
    await calls.ended()
    await at.pool.settled(full // 2)
    gone = at.pool.lives[lives:]
    return Halved(
        workers=full,
        calls=len(calls.times),
        failed=len(calls.errors),
        killed=sum(life.killed for life in gone),
        before_p99_ms=calls.quantile(0.99, until=began + seconds),
        after_p99_ms=calls.quantile(0.99, since=began + seconds),
    )
