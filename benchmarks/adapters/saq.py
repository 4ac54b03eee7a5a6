"""saq: jobs in a list, a notice over pub/sub when one finishes, and the result in the job's key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Job, Queue, Status, Worker
from saq.job import TERMINAL_STATUSES

from benchmarks.adapters.contract import Peer, Setup, main, ready


async def echo(ctx: dict[str, Any], *, text: str) -> str:
    """Return the argument."""
    return text


async def nap(ctx: dict[str, Any], *, seconds: float) -> None:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)


def _finished(_: str, status: Status) -> bool:
    return status in TERMINAL_STATUSES


class Caller:
    """Calls over one queue.

    ``queue.listen`` is used instead of ``queue.apply``, which polls; ``saq_apply`` has that.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    async def _call(self, name: str, **arguments: Any) -> Any:
        job = Job(name, kwargs=arguments, queue=self.queue, ttl=60)
        finished = asyncio.create_task(self.queue.listen([job.key], _finished, timeout=30))
        await asyncio.sleep(0)  # the listener has to be in place before the job can finish
        await self.queue.enqueue(job)
        await finished
        await job.refresh()
        return job.result

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        return await self._call("echo", text=text)

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._call("nap", seconds=seconds)


# What `saq` serves with its own command, where concurrency is the number of dequeuing tasks.
settings = {
    "queue": Queue.from_url(f"{os.environ.get('BENCH_URL') or 'redis://127.0.0.1'}?max_connections=8192"),
    "functions": [echo, nap],
    "concurrency": 100,
}


async def serve(setup: Setup) -> None:
    """Serve both tasks with as many dequeuing tasks, each with its connection, as there are slots."""
    queue = Queue.from_url(setup.pooled_url)
    await queue.connect()

    async def started(ctx: dict[str, Any]) -> None:
        ready()

    await Worker(queue, functions=[echo, nap], concurrency=setup.concurrency, startup=started).start()


@asynccontextmanager
async def opened(setup: Setup) -> AsyncIterator[Queue]:
    """Provide a connected queue, which allows as many operations at once as there are callers."""
    queue = Queue.from_url(setup.pooled_url, max_concurrent_ops=max(20, setup.concurrency))
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a queue, and keep its one subscription open, which would otherwise be made for each call."""
    async with opened(setup) as queue:
        held = asyncio.create_task(queue.listen(["held"], lambda *_: False, timeout=None))
        await asyncio.sleep(0.1)
        try:
            yield Caller(queue)
        finally:
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)


if __name__ == "__main__":
    main(Peer(serve, connect))
