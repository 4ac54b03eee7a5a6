"""The processes that are measured: workers and agents of one or more namespaces, which obey orders from standard input.

python -m benchmarks.scale.programs workers --url redis://127.0.0.1:6379 --namespaces a,b --each 2     (workers)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.adapters.contract import ready, run
from benchmarks.processes import resident
from toolbus import Settings, ToolBus, Worker, tool

TEXT = "x" * 200
_WAIT = 120.0


def _served(number: int) -> Any:
    """Return the tool of a service; that of the first one is `echo`."""

    @tool(service=f"scale-{number}", name=f"echo-{number}" if number else "echo", effect="read")
    async def echo(text: str) -> str:
        """Give a text back."""
        return text

    return echo


async def _obey(orders: dict[str, Callable[[int], Awaitable[Any]]]) -> None:
    """Carry out each order (a word and a number), and answer with the CPU seconds that it took here, this process's memory, and a value."""
    loop = asyncio.get_running_loop()
    ready()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        word, _, number = line.partition(" ")
        began, value = time.process_time(), None
        if word in orders:
            value = await orders[word](int(number or 0))
        took = time.process_time() - began
        gc.collect()
        print(json.dumps({"cpu": took, "spent": time.process_time(), "resident": resident(), "value": value}), flush=True)


def _settings(options: argparse.Namespace, namespace: str) -> Settings:
    return Settings.load({}, url=options.url, namespace=namespace, lease=options.lease, concurrency=256, queue_limit=1_000_000)


async def workers(options: argparse.Namespace) -> None:
    """Serve ``services`` services of one tool each, by ``each`` workers of each namespace; all workers of a namespace serve the same."""
    async with contextlib.AsyncExitStack() as stack:

        async def more(count: int) -> None:
            for _ in range(count):
                for namespace in options.namespaces:
                    served = [_served(number) for number in range(options.services)]
                    await stack.enter_async_context(Worker(served, settings=_settings(options, namespace)))

        await more(options.each)
        await _obey({"more": more})


async def agents(options: argparse.Namespace) -> None:
    """Open ``each`` buses in each namespace, and call through all of them at once."""
    async with contextlib.AsyncExitStack() as stack:
        buses: list[ToolBus] = []

        async def more(count: int) -> None:
            for namespace in options.namespaces * count:
                bus = ToolBus(settings=_settings(options, namespace))
                buses.append(await stack.enter_async_context(bus))

        async def call(count: int) -> int:
            """Make ``count`` calls of each bus, ``in_flight`` at a time."""
            return sum(await asyncio.gather(*(_calls(bus, count, options.in_flight) for bus in buses)))

        async def tools(count: int) -> int:
            """Wait until so many tools are known."""
            async with asyncio.timeout(_WAIT):
                while len(buses[0].tools) < count:  # noqa: ASYNC110 - the public catalogue is looked at, which has no event for a count
                    await asyncio.sleep(0.01)
            return len(buses[0].tools)

        async def found(_: int) -> None:
            await asyncio.gather(*(bus.wait_for_tool("echo", timeout=_WAIT) for bus in buses))

        await more(options.each)
        await _obey({"call": call, "tools": tools, "found": found, "more": more})


async def _calls(bus: ToolBus, count: int, in_flight: int) -> int:
    left, answered = count, 0

    async def one_after_another() -> None:
        nonlocal left, answered
        while left > 0:
            left -= 1
            result = await bus.call("echo", {"text": TEXT}, timeout=_WAIT)
            answered += result.output == TEXT

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return answered


def main() -> None:
    """Run one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("workers", "agents"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--namespaces", type=lambda text: text.split(","), required=True)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--services", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--lease", type=float, default=30.0)
    options = parser.parse_args()
    run({"workers": workers, "agents": agents}[options.side](options))


if __name__ == "__main__":
    main()
