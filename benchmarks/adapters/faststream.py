"""FastStream: request and reply over a Redis list, each reply over a pub/sub channel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import FastStream
from faststream.redis import RedisBroker

from benchmarks.adapters.contract import Peer, Setup, main, ready


class Caller:
    """Calls over one broker."""

    def __init__(self, broker: RedisBroker) -> None:
        self.broker = broker

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        reply = await self.broker.request(text, list="echo", timeout=30)
        return await reply.decode()

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self.broker.request(seconds, list="nap", timeout=30)


async def serve(setup: Setup) -> None:
    """Serve both subscribers with many workers each."""
    broker = RedisBroker(setup.pooled_url, logger=None)

    @broker.subscriber(list="echo", max_workers=setup.concurrency)
    async def echo(text: str) -> str:
        return text

    @broker.subscriber(list="nap", max_workers=setup.concurrency)
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    app = FastStream(broker, logger=None)

    @app.after_startup
    async def started() -> None:
        ready()

    await app.run()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open the client side."""
    broker = RedisBroker(setup.pooled_url, logger=None)
    async with broker:
        yield Caller(broker)


if __name__ == "__main__":
    main(Peer(serve, connect))
