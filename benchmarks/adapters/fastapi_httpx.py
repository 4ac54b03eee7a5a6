"""FastAPI on uvicorn, called with httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from benchmarks.adapters.contract import Peer, Setup, main
from benchmarks.adapters.fastapi_app import serve


class Caller:
    """Calls over one client."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        answer = await self._client.post("/echo", json={"text": text})
        return str(answer.raise_for_status().json()["text"])

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        (await self._client.post("/nap", json={"seconds": seconds})).raise_for_status()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a client with a connection for each caller."""
    limits = httpx.Limits(max_connections=setup.concurrency, max_keepalive_connections=setup.concurrency)
    async with httpx.AsyncClient(base_url=setup.url, limits=limits, timeout=30) as client:
        yield Caller(client)


if __name__ == "__main__":
    main(Peer(serve, connect))
