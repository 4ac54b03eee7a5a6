"""Measure how fast programs start, and how small an idle worker is, as users start them."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.limits import Limit, spread
from benchmarks.peers import environment
from benchmarks.processes import child
from benchmarks.servers import redis_server
from toolbus import Settings, ToolBus

COMMAND = str(Path(sys.executable).with_name("toolbus"))
HELP, IMPORT, WORKER = "toolbus --help", "import toolbus; toolbus.ToolBus", "toolbus worker FILE, to its first answer"
FIRST, AGAIN, IDLE = "ToolBus.open(), first in a process", "ToolBus.open(), again", "an idle worker"
MOST = {HELP: 80.0, IMPORT: 120.0, WORKER: 250.0, FIRST: 10.0, AGAIN: 10.0}
"""Milliseconds."""

MOST_MB = 45.0
_SETTLE_SECONDS = 1.0
_START_SECONDS = 60.0

_TOOLS = '''
from toolbus import tool


@tool(service="greetings", effect="read")
async def greet(name: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        name: who is greeted.
        times: how often.
    """
    return f"Hello {name}! " * times
'''
_OPEN = """
import asyncio, sys, time
from toolbus import ToolBus

async def main():
    for _ in range(2):
        bus = ToolBus(sys.argv[1])
        before = time.perf_counter(), time.process_time()
        await bus.open()
        print(time.perf_counter() - before[0], time.process_time() - before[1])
        await bus.aclose()

asyncio.run(main())
"""

Took = tuple[float, float]
"""Milliseconds by the clock, and of CPU."""


def measure(rounds: int, seed: int) -> tuple[list[Limit], dict[str, Any]]:
    """Start each program once a round, in shuffled order; the first round, which compiles modules, does not count."""
    chance = random.Random(seed)
    took: dict[str, list[Took]] = {name: [] for name in MOST}
    idle: list[float] = []
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        file = Path(folder, "greetings.py")
        file.write_text(_TOOLS)

        async def worker() -> None:
            times, size = await _worker(server.url, file)
            took[WORKER].append(times)
            idle.append(size)

        async def opening() -> None:
            for name, times in zip((FIRST, AGAIN), _open(server.url), strict=True):
                took[name].append(times)

        async def listing() -> None:
            took[HELP].append(_run([COMMAND, "--help"]))

        async def importing() -> None:
            took[IMPORT].append(_run([sys.executable, "-c", IMPORT]))

        for number in range(rounds + 1):
            asyncio.run(_round([worker, opening, listing, importing], chance))
            print(f"round {number}: " + ", ".join(f"{name} {times[-1][0]:.0f} ms" for name, times in took.items()), flush=True)
    limits = [_limit(name, times[1:]) for name, times in took.items()]
    limits.append(Limit(IDLE, statistics.median(idle[1:]), MOST_MB, "MB", detail=spread(idle[1:], 1)))
    return limits, {"rounds": rounds, "ms": {name: times[1:] for name, times in took.items()}, "idle_mb": idle[1:]}


def _limit(name: str, times: list[Took]) -> Limit:
    clock, cpu = zip(*times, strict=True)
    return Limit(name, statistics.median(clock), MOST[name], "ms", detail=f"{spread(clock, 1)}; CPU {spread(cpu, 1)} ms")


async def _round(steps: list[Callable[[], Awaitable[None]]], chance: random.Random) -> None:
    for step in chance.sample(steps, len(steps)):
        await step()


def _run(command: list[str]) -> Took:
    """Run a command to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment("shipped"), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}")
    return 1000 * took, 1000 * (used.ru_utime + used.ru_stime)


def _open(url: str) -> list[Took]:
    """Open two buses, one after the other, in a new process."""
    command = [sys.executable, "-c", _OPEN, url]
    done = subprocess.run(command, env=environment("shipped"), check=True, capture_output=True, text=True, timeout=_START_SECONDS)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(1000 * float(clock), 1000 * float(cpu)) for clock, cpu in lines]


async def _worker(url: str, file: Path) -> tuple[Took, float]:
    """Start a worker, call its tool from an agent that waits for it, and return how long that took; and the idle worker's memory (MB)."""
    settings = Settings.load({}, url=url, namespace=f"startup-{time.monotonic_ns()}")
    variables = {**environment("shipped", url), "TOOLBUS_NAMESPACE": settings.namespace}
    async with ToolBus(settings=settings) as bus:
        began = time.perf_counter()
        with child("the worker", [COMMAND, "worker", str(file)], env=variables) as process:
            await bus.wait_for_tool("greet", timeout=_START_SECONDS)
            result = await bus.call("greet", {"name": "Ada"})
            took = time.perf_counter() - began
            cpu = _cpu(process.pid)
            if not result.success:
                raise RuntimeError(f"the worker did not answer: {result}")
            await asyncio.sleep(_SETTLE_SECONDS)
            size = _resident(process.pid)
    return (1000 * took, 1000 * cpu), size


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process's threads, in more detail than the clock ticks of its ``stat``."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _resident(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the worker has ended")
