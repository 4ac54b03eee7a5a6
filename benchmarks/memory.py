"""Measure the memory of waiting calls: what ten thousand of them add to the processes of agent and worker.

python -m benchmarks.memory worker --url redis://127.0.0.1:6379 --namespace n --calls 10000     (one of the two processes)
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from benchmarks.adapters.contract import ready, run
from benchmarks.limits import Limit, spread
from benchmarks.processes import Child, child, resident
from toolbus.bus.broker.transport.embedded import EmbeddedServer

SIDES = ("agent", "worker")
MOST_BYTES = 4096
TEXT = "x" * 200
TIMEOUT = 3600.0
_WARM = 500
_AT_ONCE = 100
_STEP_SECONDS = 60.0
_SETTLE_SECONDS = 1.0


def measure(calls: int, runs: int) -> tuple[list[Limit], dict[str, Any]]:
    """Hold ``calls`` calls in flight, with new processes in each run; measure the resident memory per call of each process."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    with EmbeddedServer() as server:
        for number in range(runs):
            for side, size in _per_call(server.url, f"memory-{number}", calls).items():
                found[side].append(size)
            print(
                f"run {number + 1}: " + ", ".join(f"{sizes[-1]:,.0f} bytes per idle call in the {side}" for side, sizes in found.items()),
                flush=True,
            )
    limits = [
        Limit(f"memory of an idle call, {side}", statistics.median(sizes), MOST_BYTES, "bytes", detail=f"{calls:,} calls: {spread(sizes)}")
        for side, sizes in found.items()
    ]
    return limits, {"calls": calls, "bytes_per_call": found}


def _per_call(url: str, namespace: str, calls: int) -> dict[str, float]:
    """Return the bytes that one call adds to each side."""
    with (
        child("the worker", _command("worker", url, namespace, calls)) as worker,
        child("the agent", _command("agent", url, namespace, calls)) as agent,
    ):
        sides = dict(zip(SIDES, (agent, worker), strict=True))
        for process in sides.values():
            process.expect("ready", _STEP_SECONDS)
        before = {side: _ask(process, "look")["resident"] for side, process in sides.items()}
        _ask(agent, "call")
        _until_running(worker, calls)
        after = {side: _ask(process, "look") for side, process in sides.items()}
        if any(found["running"] != calls for found in after.values()):
            raise RuntimeError(f"not all of {calls} calls are in flight: {after}")
        # Cancelled calls leave neither process with anything to wait for when it is stopped.
        _ask(agent, "cancel")
        _until_running(worker, 0)
        for process in sides.values():
            process.write("")
    return {side: (after[side]["resident"] - before[side]) / calls for side in SIDES}


def _command(side: str, url: str, namespace: str, calls: int) -> list[str]:
    return [sys.executable, "-P", "-m", "benchmarks.memory", side, "--url", url, "--namespace", namespace, "--calls", str(calls)]


def _ask(process: Child, order: str) -> dict[str, int]:
    process.write(order)
    return json.loads(process.line(_STEP_SECONDS))


def _until_running(worker: Child, calls: int) -> None:
    """Wait until the worker runs this many calls, and a little longer until the effects of starting them are over."""
    limit = time.monotonic() + _STEP_SECONDS
    while _ask(worker, "look")["running"] != calls:
        if time.monotonic() > limit:
            raise RuntimeError(f"the worker did not come to run {calls} calls")
        time.sleep(0.1)
    time.sleep(_SETTLE_SECONDS)


# -- the two processes --------------------------------------------------------------------------------


async def _obey(running: Callable[[], int], orders: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Carry out each order from standard input, and answer with this process's memory and calls in flight; end at an empty line."""
    loop = asyncio.get_running_loop()
    ready()
    while order := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if order in orders:
            await orders[order]()
        gc.collect()
        print(json.dumps({"resident": resident(), "running": running()}), flush=True)


async def _worker(url: str, namespace: str, calls: int) -> None:
    from toolbus import Worker, tool

    never = asyncio.Event()

    @tool(service="memory", effect="read")
    async def hold(text: str, wait: bool) -> str:
        """Return the text at once, or wait to be cancelled."""
        if wait:
            await never.wait()
        return text

    worker = Worker([hold], url=url, namespace=namespace, concurrency=calls)
    serving = asyncio.create_task(worker.run())
    while not worker.healthy:  # noqa: ASYNC110 - there is no event for this, and 10 ms don't matter here
        await asyncio.sleep(0.01)
    obeying = asyncio.create_task(_obey(lambda: worker.statistics()["running"], {}))
    await serving
    obeying.cancel()


async def _agent(url: str, namespace: str, calls: int) -> None:
    from toolbus import Settings, ToolBus

    held: list[asyncio.Task[Any]] = []

    async def call() -> None:
        for _ in range(calls):
            held.append(asyncio.create_task(bus.call("hold", {"text": TEXT, "wait": True}, timeout=TIMEOUT)))
            # With a burst, the buffers that it fills would be measured instead of the waiting calls.
            if len(held) % _AT_ONCE == 0:
                await asyncio.sleep(0.005)

    async def cancel() -> None:
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async with ToolBus(settings=Settings.load({}, url=url, namespace=namespace, queue_limit=2 * calls)) as bus:
        await bus.wait_for_tool("hold", timeout=_STEP_SECONDS)
        # Memory that the first calls allocate once is not part of any call's.
        await asyncio.gather(*(bus.call("hold", {"text": TEXT, "wait": False}) for _ in range(_WARM)))
        await _obey(lambda: bus.statistics()["in_flight"], {"call": call, "cancel": cancel})


def main() -> None:
    """Run one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--calls", type=int, required=True)
    options = parser.parse_args()
    serve = _worker if options.side == "worker" else _agent
    run(serve(options.url, options.namespace, options.calls))


if __name__ == "__main__":
    main()
