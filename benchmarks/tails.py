"""Measure the slowest calls: at 60 % of what a worker can do, alone, beside others' work, and while workers come and go.

Calls arrive at random moments (a Poisson process by seed), whether or not earlier ones have been answered, so that a stall counts for every
call that it delays. Times of different processes are compared by the monotonic clock, which Linux shares between them.

    python -m benchmarks.tails neighbour --url redis://127.0.0.1:6379     (the process that makes the noise)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.adapters.contract import ready, run
from benchmarks.limits import quantile
from benchmarks.peers import NAMESPACE, environment
from benchmarks.processes import Child, child
from benchmarks.servers import redis_server
from toolbus import ToolBus
from toolbus.bus.values.results import ToolbusError

ALONE, NEIGHBOUR, QUEUED, MOVING = SITUATIONS = ("alone", "neighbour", "queued", "moving")
TITLES = {
    ALONE: "nothing beside it",
    NEIGHBOUR: "8 calls of 64 KB always in flight, and 500 more at once each second, to another service of the same worker",
    QUEUED: "10,000 requests always queued for another service of the same worker, each of 50 ms",
    MOVING: "a second worker that joins, serves for a second, and leaves, again and again",
}
SHARE = 0.6
"""Of what the worker answers at 64 in flight."""

_MODULE = "benchmarks.adapters.tails"
_TEXT = "x" * 200
_WIDTH = 64
_CAPACITY_SECONDS = 3.0
_START_SECONDS = 30.0
_CALL_SECONDS = 30.0


class Times(NamedTuple):
    """One call's moments: when it was due, began, was in the handler, and was answered (monotonic seconds)."""

    due: float
    began: float
    handled: float
    ended: float

    @property
    def total(self) -> float:
        """Seconds from when it was due to its answer."""
        return self.ended - self.due

    @property
    def stages(self) -> tuple[float, float, float]:
        """Seconds that it began late, took to its handler, and took back."""
        return self.began - self.due, self.handled - self.began, self.ended - self.handled


STAGES = ("begun late by the caller's loop", "on the way to the handler", "on the way back")


def measure(situations: tuple[str, ...], *, rounds: int, seconds: float, seed: int) -> dict[str, Any]:
    """Measure situations in turns, and return every figure."""
    chance = random.Random(seed)
    found: dict[str, list[dict[str, Any]]] = {situation: [] for situation in situations}
    for number in range(rounds):
        for situation in chance.sample(situations, len(situations)):
            figures = _visit(situation, seconds, chance.randrange(1 << 30))
            found[situation].append(figures)
            print(f"round {number + 1}/{rounds}  {situation:<10} {_line(figures)}", flush=True)
    return {"share": SHARE, "seconds": seconds, "situations": found}


def table(figures: dict[str, Any]) -> list[str]:
    """Return the table as Markdown: medians over the rounds, in ms."""
    lines = [
        "| beside it | calls/s | p50 | p99 | p99.9 | longest | of the slowest thousandth: late, there, back | failed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for situation, rounds in figures["situations"].items():
        middle = {name: quantile([one[name] for one in rounds], 0.5) for name in ("rate", "p50", "p99", "p999", "longest")}
        stages = [quantile([one["stages"][at] for one in rounds], 0.5) for at in range(len(STAGES))]
        cells = [f"{middle['rate']:,.0f}", *(f"{middle[name]:.2f}" for name in ("p50", "p99", "p999", "longest"))]
        cells += [", ".join(f"{stage:.1f}" for stage in stages), str(sum(one["failed"] for one in rounds))]
        lines.append(f"| {TITLES[situation]} | {' | '.join(cells)} |")
    return lines


def _line(figures: dict[str, Any]) -> str:
    slowest = max(range(len(STAGES)), key=lambda at: figures["stages"][at])
    times = "  ".join(f"{name} {figures[name]:.2f}" for name in ("p50", "p99", "p999", "longest"))
    return f"{figures['rate']:,.0f} calls/s  {times} ms; the slowest were {STAGES[slowest]}"


def _visit(situation: str, seconds: float, seed: int) -> dict[str, Any]:
    with redis_server() as server, contextlib.ExitStack() as stack:
        env = {**environment("shipped", server.url), "TOOLBUS_QUEUE_LIMIT": "20000"}
        stack.enter_context(_worker(env))
        if situation in {NEIGHBOUR, QUEUED}:
            command = [sys.executable, "-m", "benchmarks.tails", situation, "--url", server.url]
            # It is started before the load, and makes its noise all along.
            noise = stack.enter_context(child(situation, command, env=env))
            noise.expect("ready", _START_SECONDS)
        found: dict[str, Any] = run(_loaded(server.url, env, situation, seconds, random.Random(seed)))
        return found


def _worker(env: dict[str, str]) -> contextlib.AbstractContextManager[Child]:
    command = [str(Path(sys.executable).with_name("toolbus")), "worker", *(f"{_MODULE}:{name}" for name in ("stamp", "turn_round", "nap"))]
    return child("a worker", command, grace=5.0, env=env)


async def _loaded(url: str, env: dict[str, str], situation: str, seconds: float, chance: random.Random) -> dict[str, Any]:
    # As docs/explanation/performance.md advises for a program that makes so many calls.
    gc.set_threshold(20_000, 20, 20)
    async with ToolBus(url, namespace=NAMESPACE) as bus, contextlib.AsyncExitStack() as stack:
        await bus.wait_for_tool("stamp", timeout=_START_SECONDS)
        rate = SHARE * await _capacity(bus)
        if situation == MOVING:
            await stack.enter_async_context(_moving(env))
        return await _load(bus, rate, seconds, chance)


async def _capacity(bus: ToolBus) -> float:
    """Return how many calls per second are answered at 64 in flight, beside the same noise."""
    until, count = time.monotonic() + _CAPACITY_SECONDS, 0

    async def caller() -> None:
        nonlocal count
        while time.monotonic() < until:
            await bus.call("stamp", {"text": _TEXT})
            count += 1

    await asyncio.gather(*(caller() for _ in range(_WIDTH)))
    return count / _CAPACITY_SECONDS


async def _load(bus: ToolBus, rate: float, seconds: float, chance: random.Random) -> dict[str, Any]:
    found: list[Times] = []
    failed: list[str] = []

    async def call(due: float) -> None:
        began = time.monotonic()
        result = await bus.call("stamp", {"text": _TEXT}, timeout=_CALL_SECONDS)
        if result.success:
            found.append(Times(due, began, float(result.output), time.monotonic()))
        else:
            failed.append(str(result.error))

    start = due = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        while due < start + seconds:
            due += chance.expovariate(rate)
            # Sleeps end a little late; what is due by then begins at once, and what it waited counts.
            if (ahead := due - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            tasks.create_task(call(due))
    return _figures(found, failed, time.monotonic() - start)


def _figures(found: list[Times], failed: list[str], seconds: float) -> dict[str, Any]:
    totals = sorted(times.total for times in found)
    slowest = sorted(found, key=lambda times: times.total)[-max(1, len(found) // 1000) :]
    return {
        "rate": len(found) / seconds,
        **{name: quantile(totals, share) * 1000 for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))},
        "longest": totals[-1] * 1000,
        "stages": [quantile([times.stages[at] for times in slowest], 0.5) * 1000 for at in range(len(STAGES))],
        "failed": len(failed),
        "first_error": failed[0] if failed else "",
    }


@contextlib.asynccontextmanager
async def _moving(env: dict[str, str]) -> AsyncIterator[None]:
    """Let a second worker come and go until the end of the block."""

    async def come_and_go() -> None:
        while True:
            with _worker(env) as worker:
                await asyncio.sleep(1.5)
                await asyncio.to_thread(worker.stop, 5.0)

    task = asyncio.create_task(come_and_go())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# -- the noise --------------------------------------------------------------------------------------


async def _neighbour(bus: ToolBus) -> None:
    """Keep 8 large calls in flight, and make a burst of 500 each second."""
    large = "x" * 65_536

    async def caller() -> None:
        while True:
            await bus.call("turn_round", {"text": large})

    async def burst() -> None:
        while True:
            await asyncio.gather(*(bus.call("turn_round", {"text": _TEXT}) for _ in range(500)))
            await asyncio.sleep(1.0)

    await _all([caller] * 8 + [burst])


async def _queued(bus: ToolBus) -> None:
    """Keep 10,000 requests of 50 ms queued."""

    async def caller() -> None:
        while True:
            await bus.call("nap", {"seconds": 0.05}, timeout=3600.0)

    await _all([caller] * 10_000)


async def _all(callers: list[Callable[[], Awaitable[None]]]) -> None:
    tasks = [asyncio.ensure_future(caller()) for caller in callers]
    await asyncio.sleep(0)
    ready()
    await asyncio.gather(*tasks)


async def _noise(kind: str, url: str) -> None:
    async with ToolBus(url, namespace=NAMESPACE) as bus:
        await bus.wait_for_tool("nap", timeout=_START_SECONDS)
        await {NEIGHBOUR: _neighbour, QUEUED: _queued}[kind](bus)


def main() -> None:
    """Make noise until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=(NEIGHBOUR, QUEUED))
    parser.add_argument("--url", required=True)
    options = parser.parse_args()
    with contextlib.suppress(ToolbusError, KeyboardInterrupt):
        run(_noise(options.kind, options.url))


if __name__ == "__main__":
    main()
