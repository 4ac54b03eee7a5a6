"""arq: jobs in a sorted set that the worker polls, results under keys that the client polls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Worker

from benchmarks.adapters.contract import Peer, Setup, main, ready


async def echo(ctx: dict[str, Any], text: str) -> str:
    """Return the argument."""
    return text


async def nap(ctx: dict[str, Any], seconds: float) -> None:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)


class Caller:
    """Calls over one pool."""

    def __init__(self, pool: ArqRedis, poll: float) -> None:
        self.pool = pool
        self.poll = poll

    async def _call(self, name: str, *arguments: Any) -> Any:
        job = await self.pool.enqueue_job(name, *arguments)
        assert job is not None
        return await job.result(timeout=30, poll_delay=self.poll)

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        return await self._call("echo", text)

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._call("nap", seconds)


class WorkerSettings:
    """Tells `arq` what to serve with its own command."""

    functions: ClassVar[list[Any]] = [echo, nap]
    redis_settings = RedisSettings.from_dsn(os.environ.get("BENCH_URL") or "redis://127.0.0.1")
    max_jobs = 1024
    poll_delay = 0.001
    keep_result = 60


async def serve(setup: Setup) -> None:
    """Serve both tasks, polling the queue every millisecond (its default is half a second)."""

    async def started(ctx: dict[str, Any]) -> None:
        ready()

    worker = Worker(
        functions=[echo, nap],
        redis_settings=RedisSettings(host=setup.host, port=setup.port),
        max_jobs=setup.concurrency,
        poll_delay=0.001,
        keep_result=60,
        log_results=False,
        on_startup=started,
    )
    await worker.async_run()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Poll results often when there are few calls, and less when polls would be most of the load."""
    pool = await create_pool(RedisSettings(host=setup.host, port=setup.port))
    try:
        yield Caller(pool, poll=min(0.1, 0.001 * setup.concurrency))
    finally:
        await pool.aclose()


if __name__ == "__main__":
    main(Peer(serve, connect))
