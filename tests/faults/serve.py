"""A worker process for fault tests: ``python -m tests.faults.serve URL NAMESPACE LEASE [SETTING=VALUE ...]``; pid in its instance id.

With TEST_VERSION set its tools describe themselves differently, as those of another release do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from toolbus import Settings, Worker, invocation, tool


@tool(service="faults", effect="read", description=f"Count slowly, release {os.environ.get('TEST_VERSION', '1')}.")
async def count(n: int, delay: float = 0.02, width: int = 0):
    """Count slowly, in numbers of some width."""
    for number in range(n):
        yield f"{number:{width}} "
        await asyncio.sleep(delay)


@tool(service="faults", effect="read")
async def count_behind(gate: str, n: int):
    """Count to five, say so in a file of this run's, and count on once another one is gone."""
    for number in range(n):
        if number == 5:
            # A run's number is the server's, so two runs with one number are told apart by their processes.
            Path(f"{gate}.{invocation().id}.{invocation().attempt}.{os.getpid()}").touch()  # noqa: ASYNC240 - the file is the test's
        while number >= 5 and Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the file is the test's
            await asyncio.sleep(0.01)
        yield f"{number} "


@tool(service="faults", effect="read")
async def diverge(n: int, delay: float = 0.02):
    """Say something else in every process."""
    for number in range(n):
        yield f"{os.getpid()}:{number} "
        await asyncio.sleep(delay)


@tool(service="faults", effect="read")
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 - the fault itself
    return "unblocked"


@tool(service="faults", effect="read")
def stick(seconds: float) -> str:
    """Block a thread."""
    time.sleep(seconds)
    return "unstuck"


@tool(service="faults", effect="once")
async def pay(seconds: float) -> str:
    """Have an effect that must not happen twice."""
    await asyncio.sleep(seconds)
    return "paid"


@tool(service="faults", effect="read")
async def poison() -> str:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


if __name__ == "__main__":
    url, namespace, lease = sys.argv[1:4]
    chosen = {"max_deliveries": "2", "grace": "5", **dict(word.split("=", 1) for word in sys.argv[4:])}
    settings = Settings.load({}, url=url, namespace=namespace, lease=lease, **chosen)
    asyncio.run(Worker([count], settings=settings).run())
