"""saq as its documentation shows it: ``await queue.apply(...)``, which polls the job every half second until it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.adapters import saq
from benchmarks.adapters.contract import Peer, Setup, main


class Caller(saq.Caller):
    """Calls over one queue."""

    async def _call(self, name: str, **arguments: Any) -> Any:
        return await self.queue.apply(name, **arguments)


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a queue."""
    async with saq.opened(setup) as queue:
        yield Caller(queue)


if __name__ == "__main__":
    main(Peer(saq.serve, connect))
