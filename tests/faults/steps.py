"""A worker process for the fault tests of order: ``python -m tests.faults.steps URL NAMESPACE LEASE FILE``.

Its sticky service writes to FILE when a step of a session begins and when it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from toolbus import Settings, ToolService, Worker, invocation, tool


class Steps(ToolService):
    """Writes down steps, each of which takes a while."""

    id = "steps"
    sticky_sessions = True
    session_lost = "restart"

    def __init__(self, file: Path) -> None:
        self._file = file

    def _write(self, word: str, number: int) -> None:
        with self._file.open("a") as file:
            file.write(f"{word} {invocation().session} {number} {os.getpid()}\n")

    @tool(effect="idempotent")
    async def step(self, number: int, seconds: float = 0.01) -> str:
        """Take a step."""
        self._write("begin", number)
        await asyncio.sleep(seconds)
        self._write("end", number)
        return f"{os.getpid()}"


if __name__ == "__main__":
    url, namespace, lease, last = sys.argv[1:5]
    chosen = Settings.load({}, url=url, namespace=namespace, lease=lease, grace=1.0, concurrency=8)
    asyncio.run(Worker(Steps(Path(last)), settings=chosen).run())
