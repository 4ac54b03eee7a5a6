"""Measure how long callers wait when something goes wrong: a killed worker, a cancelled call, a stopped worker.

Times of different processes are compared by the monotonic clock, which Linux shares between them.

    python -m benchmarks.latency --url redis://127.0.0.1:6379 --namespace n --lease 2 --log FILE     (a worker's process)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.adapters.contract import ready, run
from benchmarks.limits import Limit, quantile, spread
from benchmarks.processes import Child, child
from toolbus.bus.broker.transport.embedded import EmbeddedServer

INTERVAL = 0.02
# Independent pools run at the same time, because waiting is measured, not work.
POOLS = 5
LIGHT_CALLS_PER_SECOND = 200
_GIVEN_UP_AFTER = 20.0


# -- recovery -----------------------------------------------------------------------------------------


def recovery(kills: int, lease: float, seed: int) -> tuple[list[Limit], dict[str, Any]]:
    """Kill a worker in mid-stream ``kills`` times; return the limits on the longest silence of its caller, and all figures."""
    with EmbeddedServer() as server:
        silences = asyncio.run(_recovery(server.url, kills, lease, seed))
    print(f"longest silence: p50 {quantile(silences, 0.5):.2f} s, p99 {quantile(silences, 0.99):.2f} s, {spread(silences, 2)} s")
    limit = Limit(
        "silence after SIGKILL, p99", quantile(silences, 0.99), 1.5 * lease, "s", detail=f"{len(silences)} kills: {spread(silences, 2)}"
    )
    return [limit], {"lease": lease, "silences": silences}


async def _recovery(url: str, kills: int, lease: float, seed: int) -> list[float]:
    async with asyncio.TaskGroup() as tasks:
        pools = [tasks.create_task(_Pool(url, number, lease, seed).suffer(len(range(number, kills, POOLS)))) for number in range(POOLS)]
    return sorted(silence for pool in pools for silence in pool.result())


class _Pool:
    """Two workers that are killed one after the other, and an agent that reads a stream."""

    def __init__(self, url: str, number: int, lease: float, seed: int) -> None:
        self.url = url
        self.namespace = f"recovery-{number}"
        self.lease = lease
        self.chance = random.Random(f"{seed}.{number}")
        self.workers: dict[int, Child] = {}

    async def suffer(self, kills: int) -> list[float]:
        """Kill and measure ``kills`` times."""
        from toolbus import Settings, ToolBus

        settings = Settings.load({}, url=self.url, namespace=self.namespace, lease=self.lease)
        try:
            await self._spawn()
            async with ToolBus(settings=settings) as bus:
                await bus.wait_for_tool("tick", timeout=20)
                silences = []
                for _ in range(kills):
                    await self._spawn()
                    # For one lease after it connected, a worker does not take over other workers' requests.
                    await asyncio.sleep(self.lease * (1 + self.chance.random()))
                    silences.append(await self._silence(bus))
                return silences
        finally:
            for worker in self.workers.values():
                worker.stop(0.0)

    async def _spawn(self) -> None:
        worker = Child("a worker", _command(self.url, self.namespace, self.lease))
        self.workers[worker.pid] = worker
        await asyncio.to_thread(worker.expect, "ready", 30)

    async def _silence(self, bus: Any) -> float:
        """Kill the worker of a stream somewhere in the middle; return the longest time between two pieces."""
        from toolbus.bus.values.events import Reset, Started, Text

        kill_after = 0.2 + self.chance.random()
        longest, killed, first = 0.0, 0.0, ""
        last = began = time.monotonic()
        async with bus.stream("tick", {"began": began}, timeout=60.0) as call, asyncio.timeout(_GIVEN_UP_AFTER):
            async for event in call.events():
                now = time.monotonic()
                if isinstance(event, Started):
                    first = first or event.worker
                elif isinstance(event, Reset):
                    raise RuntimeError("the stream started again")  # noqa: TRY004 - not an error of types
                elif isinstance(event, Text):
                    longest, last = max(longest, now - last), now
                    if not killed and now > began + kill_after:
                        pid = int(first.rsplit("-", 2)[1])
                        os.kill(pid, signal.SIGKILL)
                        self.workers.pop(pid).stop(0.0)
                        killed = now
                    elif killed and longest > self.lease / 4 and now > killed + longest + 0.2:
                        return longest
        raise RuntimeError("the stream ended")


# -- cancelling ---------------------------------------------------------------------------------------


def cancelling(cancels: int) -> tuple[list[Limit], dict[str, Any]]:
    """Cancel running calls, and stop idle workers; measure the time until the handler or the process reacts."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        log = Path(folder, "cancelled")
        asked = asyncio.run(_cancelling(server.url, cancels, log))
        heard = [line.split() for line in log.read_text().splitlines()]
        stops = asyncio.run(_stopping(server.url, 20))
    ms = sorted((float(when) - asked[int(number)]) * 1000 for number, when in heard)
    print(f"cancel to CancelledError: p50 {quantile(ms, 0.5):.2f} ms, p99 {quantile(ms, 0.99):.2f} ms")
    print(f"SIGTERM to exit: {spread(stops)} ms")
    return [
        Limit("cancel to CancelledError, p99", quantile(ms, 0.99), 100, "ms", detail=f"{len(ms)} calls, p50 {quantile(ms, 0.5):.2f}"),
        Limit("cancels not heard", cancels - len(ms), 0, ""),
        Limit("SIGTERM to exit of an idle worker, most", max(stops), 300, "ms", detail=f"{len(stops)} runs: {spread(stops)}"),
    ], {"cancel_ms": ms, "stop_ms": stops}


async def _cancelling(url: str, cancels: int, log: Path) -> dict[int, float]:
    """Return the time at which each call was cancelled."""
    from toolbus import ToolBus
    from toolbus.bus.values.events import Started

    asked: dict[int, float] = {}
    with child("the worker", _command(url, "cancel", 30.0, log)) as worker:
        await asyncio.to_thread(worker.expect, "ready", 30)
        async with ToolBus(url, namespace="cancel") as bus, _light_load(bus):
            chance = random.Random(1)
            for number in range(cancels):
                async with bus.stream("hang", {"number": number}) as call:
                    async for event in call.events():
                        if isinstance(event, Started):
                            break
                    await asyncio.sleep(chance.uniform(0.005, 0.02))
                    asked[number] = time.monotonic()
                    call.cancel()
            await asyncio.sleep(1)
    return asked


@contextlib.asynccontextmanager
async def _light_load(bus: Any) -> AsyncIterator[None]:
    """Make other calls in the background."""

    async def load() -> None:
        while True:
            await bus.call("echo", {"text": "x" * 200})
            await asyncio.sleep(1 / LIGHT_CALLS_PER_SECOND)

    await bus.wait_for_tool("hang", timeout=10)
    task = asyncio.create_task(load())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _stopping(url: str, runs: int) -> list[float]:
    """Return the milliseconds from SIGTERM to the end of an idle worker."""
    from toolbus import ToolBus

    took = []
    for number in range(runs):
        namespace = f"stop-{number}"
        with child("the worker", _command(url, namespace, 30.0)) as worker:
            await asyncio.to_thread(worker.expect, "ready", 30)
            async with ToolBus(url, namespace=namespace) as bus:
                await bus.wait_for_tool("echo", timeout=10)
                await bus.call("echo", {"text": "warm"})
            await asyncio.sleep(0.3)
            began = time.monotonic()
            worker.process.terminate()
            worker.wait(30)
            took.append((time.monotonic() - began) * 1000)
    return took


# -- the worker's process -----------------------------------------------------------------------------


def _command(url: str, namespace: str, lease: float, log: Path | None = None) -> list[str]:
    words = [sys.executable, "-P", "-m", "benchmarks.latency", "--url", url, "--namespace", namespace, "--lease", str(lease)]
    return words if log is None else [*words, "--log", str(log)]


async def _serve(url: str, namespace: str, lease: float, log: Path) -> None:
    from toolbus import Settings, Worker, tool

    @tool(service="latency", effect="read")
    async def tick(began: float) -> AsyncIterator[str]:
        """Yield the numbers of the intervals since a moment; a late start yields all that are due at once."""
        number = 0
        while True:
            while began + number * INTERVAL <= time.monotonic():
                yield f"{number} "
                number += 1
            await asyncio.sleep(INTERVAL)

    @tool(service="latency", effect="read")
    async def hang(number: int) -> str:
        """Wait to be cancelled, and write down the time."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard = time.monotonic()
            with log.open("a") as file:
                file.write(f"{number} {heard}\n")
            raise
        return ""

    @tool(service="latency", effect="read")
    async def echo(text: str) -> str:
        """Return the argument."""
        return text

    settings = Settings.load({}, url=url, namespace=namespace, lease=lease, log_level="error")
    worker = Worker([tick, hang, echo], settings=settings)
    serving = asyncio.create_task(worker.run())
    while not worker.healthy:  # noqa: ASYNC110 - there is no event for this, and 10 ms don't matter here
        await asyncio.sleep(0.01)
    ready()
    await serving


def main() -> None:
    """Run the process of a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    run(_serve(options.url, options.namespace, options.lease, options.log))


if __name__ == "__main__":
    main()
