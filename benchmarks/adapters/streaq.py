"""streaq: requests in streams, and the result over a pub/sub channel per task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streaq import Worker

from benchmarks.adapters.contract import Peer, Setup, main, ready


def _worker(setup: Setup) -> tuple[Worker[Any], Any, Any]:
    worker: Worker[Any] = Worker(
        redis_url=setup.url, concurrency=setup.concurrency, handle_signals=False, redis_kwargs={"max_connections": 8192}
    )

    @worker.task(name="echo", ttl=60, silent=True)
    async def echo(text: str) -> str:
        return text

    @worker.task(name="nap", ttl=60, silent=True)
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return worker, echo, nap


class Caller:
    """Calls over one client-side worker object, as in streaq's documentation."""

    def __init__(self, echo: Any, nap: Any) -> None:
        self._echo = echo
        self._nap = nap

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        task = await self._echo.enqueue(text)
        return (await task.result(30)).result

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        task = await self._nap.enqueue(seconds)
        await task.result(30)


async def serve(setup: Setup) -> None:
    """Serve both tasks."""
    worker, _, _ = _worker(setup)
    ready()
    await worker.run_async()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open the client side."""
    worker, echo, nap = _worker(setup)
    async with worker:
        yield Caller(echo, nap)


if __name__ == "__main__":
    main(Peer(serve, connect))
