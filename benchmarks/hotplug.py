"""Measure hot-plug: the time until a new service's tool is in the catalogue of a running agent.

Agent and worker are separate processes. For every repetition the worker starts a new service and
reports when, by the clock that all processes share; the agent waits for its tool. Then the service
stops cleanly, and the agent waits until the tool is gone.

    python -m benchmarks.hotplug agent --url redis://127.0.0.1:6379
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.adapters.contract import percentile, ready
from benchmarks.processes import Child, ChildError, child
from benchmarks.servers import Server

NAMESPACE = "hotplug"
STEP_SECONDS = 10.0


def measure(server: Server, repetitions: int) -> dict[str, Any]:
    """Plug services in and out; return p50 and p99 in ms."""
    server.reset()
    command = [sys.executable, "-P", "-m", "benchmarks.hotplug", "agent", "--url", server.url, "--repetitions", str(repetitions)]
    try:
        with child("the hot-plug agent", command) as agent:
            return json.loads(agent.line(60 + repetitions * 1.0))
    except (ChildError, ValueError) as error:
        return {"failure": str(error)}


async def _worker(url: str) -> None:
    """For each name on standard input, start a service with one tool of that name, and stop it at the next line."""
    from toolbus import ToolService, Worker

    loop = asyncio.get_running_loop()
    ready()
    while name := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        service = _service(ToolService, name)
        before = time.monotonic_ns()
        async with Worker([service], url=url, namespace=NAMESPACE):
            after = time.monotonic_ns()
            print(json.dumps({"before": before, "after": after}), flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            stopping = time.monotonic_ns()
        print(json.dumps({"stopping": stopping}), flush=True)


def _service(base: type, name: str) -> Any:
    async def invoke(self: Any, user: str, config: Any, arguments: Any) -> str:
        return name

    tools = [{"name": name, "description": "Say the name of this tool.", "arguments": []}]
    return type("Plug", (base,), {"id": f"service-{name}", "tools": tools, "invoke": invoke})()


async def _agent(url: str, repetitions: int) -> dict[str, Any]:
    from toolbus import ToolBus

    whole: list[float] = []
    published: list[float] = []
    gone: list[float] = []
    loop = asyncio.get_running_loop()
    command = [sys.executable, "-P", "-m", "benchmarks.hotplug", "worker", "--url", url]
    with child("the hot-plug worker", command) as worker:
        worker.expect("ready", 30)
        async with ToolBus(url, namespace=NAMESPACE) as bus:
            for number in range(repetitions):
                name = f"plug-{number}"
                waiting = asyncio.create_task(_seen(bus, name))
                await asyncio.sleep(0.01)
                worker.write(name)
                seen = await waiting
                times = await loop.run_in_executor(None, _answer, worker)
                whole.append((seen - times["before"]) / 1e9)
                published.append(max(0, seen - times["after"]) / 1e9)
                worker.write("stop")
                left = await _left(bus, name)
                times = await loop.run_in_executor(None, _answer, worker)
                gone.append((left - times["stopping"]) / 1e9)
    return {
        "repetitions": repetitions,
        **_figures("from before the worker opens to in the catalogue, ms", whole),
        **_figures("from the worker being open to in the catalogue, ms", published),
        **_figures("from a clean stop to out of the catalogue, ms", gone),
    }


async def _seen(bus: Any, name: str) -> int:
    await bus.wait_for_tool(name, timeout=STEP_SECONDS)
    return time.monotonic_ns()


async def _left(bus: Any, name: str) -> int:
    async with asyncio.timeout(STEP_SECONDS):
        while name in bus.tools:  # noqa: ASYNC110 - what is measured is the public catalogue, seen every half millisecond
            await asyncio.sleep(0.0005)
    return time.monotonic_ns()


def _answer(worker: Child) -> dict[str, int]:
    return json.loads(worker.line(STEP_SECONDS))


def _figures(title: str, seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    return {f"{title}, p50": percentile(ordered, 0.5), f"{title}, p99": percentile(ordered, 0.99)}


def main() -> None:
    """Run one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("agent", "worker"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args()
    if options.side == "worker":
        asyncio.run(_worker(options.url))
    else:
        print(json.dumps(asyncio.run(_agent(options.url, options.repetitions))))


if __name__ == "__main__":
    main()
