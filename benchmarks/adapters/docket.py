"""docket (pydocket): requests in a stream with a group, state changes over pub/sub, results under keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from docket import Docket, Worker

from benchmarks.adapters.contract import Peer, Setup, main, ready

TIMEOUT = timedelta(seconds=30)


async def echo(text: str) -> str:
    """Return the argument."""
    return text


async def nap(seconds: float) -> bool:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)
    return True


def _docket(setup: Setup) -> Docket:
    return Docket(name="bench", url=setup.pooled_url, execution_ttl=timedelta(seconds=60))


class Caller:
    """Calls over one docket."""

    def __init__(self, docket: Docket) -> None:
        self.docket = docket

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        execution = await self.docket.add(echo)(text)
        return await execution.get_result(timeout=TIMEOUT)

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        execution = await self.docket.add(nap)(seconds)
        await execution.get_result(timeout=TIMEOUT)


async def serve(setup: Setup) -> None:
    """Serve both tasks, looking for new ones every 5 ms (its default is a quarter of a second)."""
    async with _docket(setup) as docket:
        docket.register(echo)
        docket.register(nap)
        async with Worker(
            docket,
            concurrency=setup.concurrency,
            message_batch=setup.concurrency,
            minimum_check_interval=timedelta(milliseconds=5),
        ) as worker:
            ready()
            await worker.run_forever()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open the client side."""
    async with _docket(setup) as docket:
        yield Caller(docket)


if __name__ == "__main__":
    main(Peer(serve, connect))
