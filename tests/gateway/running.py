"""Gateways of a test: the application behind a real HTTP server, on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from tests.servers import eventually
from toolbus import ToolBus
from toolbus.edges.gateway.app import application
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.options import Authenticator, Everyone


class _Server(uvicorn.Server):
    """A server that ends when it is told to, in place of looking every tenth of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        """Serve until the end."""
        await self.on_tick(0)
        await self.ended.wait()


@asynccontextmanager
async def listening(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """Serve an application, and yield its URL."""
    chosen = {"port": 0, "lifespan": "off", **options}
    server = _Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=2, **chosen))
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or serving.done(), timeout=30.0)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.ended.set()
        await serving


@asynccontextmanager
async def client_of(bus: ToolBus, authenticator: Authenticator | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a gateway."""
    app = application(Gateway(bus, authenticator or Everyone()))
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:
        yield client


def events_of(text: str) -> list[tuple[str, str]]:
    """Return the name and data of each server-sent event."""
    found = [dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")) for block in text.split("\n\n")]
    return [(event["event"], event["data"]) for event in found if event]
