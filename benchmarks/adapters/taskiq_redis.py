"""taskiq with taskiq-redis: requests in a stream with a group, results under keys that the client polls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.adapters.contract import Peer, Setup, main, ready


def _broker(setup: Setup) -> tuple[RedisStreamBroker, Any, Any]:
    results: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(redis_url=setup.url, result_ex_time=60)
    broker = RedisStreamBroker(url=setup.url, consumer_id="0", xread_count=max(100, setup.concurrency), maxlen=100_000)
    broker = broker.with_result_backend(results)

    @broker.task(task_name="echo")
    async def echo(text: str) -> str:
        return text

    @broker.task(task_name="nap")
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return broker, echo, nap


# What `taskiq worker` serves.
broker = _broker(Setup(os.environ.get("BENCH_URL") or "redis://127.0.0.1", 1024))[0]


class Caller:
    """Calls over one broker."""

    def __init__(self, echo: Any, nap: Any, poll: float) -> None:
        self._echo = echo
        self._nap = nap
        self.poll = poll

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        task = await self._echo.kiq(text)
        return (await task.wait_result(check_interval=self.poll, timeout=30)).return_value

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        task = await self._nap.kiq(seconds)
        await task.wait_result(check_interval=self.poll, timeout=30)


async def serve(setup: Setup) -> None:
    """Serve both tasks in this loop, as `taskiq worker` does in each of its processes."""
    broker, _, _ = _broker(setup)
    broker.is_worker_process = True
    await broker.startup()
    ready()
    await run_receiver_task(broker, max_async_tasks=setup.concurrency, validate_params=False)


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Poll results often when there are few calls, and less when polls would be most of the load."""
    broker, echo, nap = _broker(setup)
    await broker.startup()
    try:
        yield Caller(echo, nap, poll=min(0.1, 0.001 * setup.concurrency))
    finally:
        await broker.shutdown()


if __name__ == "__main__":
    main(Peer(serve, connect))
