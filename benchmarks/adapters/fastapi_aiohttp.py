"""FastAPI on uvicorn, called with aiohttp."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.adapters.contract import Peer, Setup, main
from benchmarks.adapters.fastapi_app import serve


class Caller:
    """Calls over one session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(path, json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        return str((await self._post("/echo", {"text": text}))["text"])

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._post("/nap", {"seconds": seconds})


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a session with a connection for each caller."""
    connector = aiohttp.TCPConnector(limit=setup.concurrency)
    async with aiohttp.ClientSession(setup.url, connector=connector) as session:
        yield Caller(session)


if __name__ == "__main__":
    main(Peer(serve, connect))
