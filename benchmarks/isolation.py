"""Measure the cost of isolation: an isolated echo beside a plain one, and the time to replace a killed child.

Run it with ``python -m benchmarks.isolation``; caller and worker share a process, over an embedded server.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.limits import quantile
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.worker.function import tool_of

CALLS = 2_000
KILLS = 40


@tool(service="benchmark-isolation", effect="read")
def echo_thread(text: str) -> str:
    """Echo in a thread."""
    return text


@tool(service="benchmark-isolation", effect="read")
async def echo_plain(text: str) -> str:
    """Echo in the event loop."""
    return text


@tool(service="benchmark-isolation", effect="read", isolation="process")
def echo_isolated(text: str) -> str:
    """Echo in a child process."""
    return text


@tool(service="benchmark-isolation", effect="read", isolation="process")
def spin() -> str:
    """Never end."""
    while True:
        pass


async def latencies(bus: ToolBus, name: str) -> list[float]:
    """Return the milliseconds of calls, one after another."""
    found: list[float] = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        result = await bus.call(name, {"text": "hello"})
        found.append((time.perf_counter() - begun) * 1000)
        assert result.output == "hello", result
    return found


async def after_kills(bus: ToolBus) -> list[float]:
    """Return the milliseconds of the first call after a child was killed at its deadline."""
    found: list[float] = []
    for _ in range(KILLS):
        await bus.call("spin", timeout=0.05)
        begun = time.perf_counter()
        await bus.call("echo_isolated", {"text": "hello"})
        found.append((time.perf_counter() - begun) * 1000)
    return found


def idle_cost(pids: list[int]) -> str:
    """Return the memory and processor time of a fork server and its children."""
    family = [*pids, *(int(pid) for each in pids for pid in Path(f"/proc/{each}/task/{each}/children").read_text().split())]
    own = 0
    for pid in family:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return f"{len(family)} processes, {own / 1024:.1f} MB in all (proportional), {switches(family)} context switches in 5 s"


def switches(family: list[int]) -> int:
    """Return how often the processes woke up within five seconds."""

    def count() -> int:
        return sum(
            int(line.split()[1])
            for pid in family
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if "ctxt_switches" in line
        )

    before = count()
    time.sleep(5)
    return count() - before


async def main() -> None:
    """Measure and print."""
    assert tool_of(echo_isolated) is not None
    with EmbeddedServer() as server:
        settings = Settings.load({}, url=server.url, namespace="benchmark-isolation")
        async with Worker([echo_isolated], settings=settings) as worker, ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("echo_isolated", timeout=10)
            for name in ("echo_plain", "echo_thread", "echo_isolated"):
                await bus.call(name, {"text": "hello"})
                found = await latencies(bus, name)
                print(f"{name:<14} p50 {quantile(found, 0.5):.2f} ms   p99 {quantile(found, 0.99):.2f} ms")
            found = await after_kills(bus)
            print(f"after a kill   p50 {quantile(found, 0.5):.2f} ms   max {max(found):.2f} ms")
            begun = time.perf_counter()
            count = 2_000
            await asyncio.gather(*(bus.call("echo_isolated", {"text": "hello"}) for _ in range(count)))
            print(f"at once        {count / (time.perf_counter() - begun):,.0f} calls/s with {worker.isolation.limit} children")
            print("idle          ", idle_cost(worker.isolation.pids))


if __name__ == "__main__":
    asyncio.run(main())
