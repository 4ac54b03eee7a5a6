"""A worker process for the fault tests of order: ``python -m tests.faults.steps URL NAMESPACE LEASE FILE [NUMBER]``.

Its sticky service writes to FILE when a step of a session begins and when it ends. The end of step NUMBER never leaves the worker, which
writes ``kept`` once everything has begun that does not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from toolbus import Settings, ToolService, Worker, invocation, tool
from toolbus.bus.broker.replies.finish import Outbox
from toolbus.bus.broker.take.requests import Delivery


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


def keep_end(number: int, file: Path) -> None:
    """Keep the end of a step in this process."""
    finish = Outbox.finish
    told: list[asyncio.Task[None]] = []

    async def tell(outbox: Outbox) -> None:
        # What begins without a word of the server has begun within its answer to something else.
        await outbox.link.execute("TIME", repeatable=True)
        with file.open("a") as opened:
            opened.write(f"kept - {number} {os.getpid()}\n")

    def kept(outbox: Outbox, delivery: Delivery, *args: Any) -> None:
        if delivery.request.arguments["number"] == number:
            told.append(asyncio.get_running_loop().create_task(tell(outbox)))
        else:
            finish(outbox, delivery, *args)

    Outbox.finish = kept  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    url, namespace, lease, last = sys.argv[1:5]
    if len(sys.argv) > 5:
        keep_end(int(sys.argv[5]), Path(last))
    chosen = Settings.load({}, url=url, namespace=namespace, lease=lease, grace=1.0, concurrency=8)
    asyncio.run(Worker(Steps(Path(last)), settings=chosen).run())
