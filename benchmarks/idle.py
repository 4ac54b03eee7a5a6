"""Measure the idle cost: what an idle worker and an idle agent use, and how many commands they send."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

from benchmarks.adapters.contract import ready
from benchmarks.peers import PeerSpec
from benchmarks.processes import ChildError, child
from benchmarks.servers import RedisServer

SETTLE_SECONDS = 2.0


def measure(server: RedisServer, toolbus: PeerSpec, seconds: float) -> dict[str, Any]:
    """Return the CPU use (share of a core) and the commands per second over a while without calls."""
    server.reset()
    agent_command = [sys.executable, "-P", "-m", "benchmarks.idle", "--url", server.url]
    try:
        with (
            child("the idle worker", toolbus.command("worker", "quiet", url=server.url)) as worker,
            child("the idle agent", agent_command) as agent,
        ):
            worker.expect("ready", 30)
            agent.expect("ready", 30)
            time.sleep(SETTLE_SECONDS)
            began, begin = time.monotonic(), (worker.cpu(), agent.cpu(), server.process.cpu(), server.commands())
            time.sleep(seconds)
            elapsed, end = time.monotonic() - began, (worker.cpu(), agent.cpu(), server.process.cpu(), server.commands())
            alive = worker.process.poll() is None and agent.process.poll() is None
    except ChildError as error:
        return {"failure": str(error)}
    if not alive:
        return {"failure": "a process ended while it should have been idle"}
    worker_cpu, agent_cpu, server_cpu, commands = ((after - before) / elapsed for before, after in zip(begin, end, strict=True))
    return {
        "seconds": elapsed,
        "worker, % of a core": worker_cpu * 100,
        "agent, % of a core": agent_cpu * 100,
        "server, % of a core": server_cpu * 100,
        "commands per second": commands,
    }


async def _agent(url: str) -> None:
    from benchmarks.adapters.toolbus import NAMESPACE
    from toolbus import ToolBus

    async with ToolBus(url, namespace=NAMESPACE) as bus:
        await bus.wait_for_tool("echo", timeout=10)
        ready()
        await asyncio.Event().wait()


def main() -> None:
    """Run the process of the agent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    asyncio.run(_agent(parser.parse_args().url))


if __name__ == "__main__":
    main()
