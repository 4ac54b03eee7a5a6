"""Put the routes of the page together, and keep its board running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from toolbus.bus.watch.watch import Watch
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.page import board as stream
from toolbus.edges.gateway.page import changing, files, pins
from toolbus.edges.gateway.page import rows as reading
from toolbus.edges.gateway.page.board import Board

RECENT = 300
"""Recent attempts of calls that the page shows."""

ROUTES: list[BaseRoute] = [*files.ROUTES, *stream.ROUTES, *changing.ROUTES, *reading.ROUTES, *pins.ROUTES]


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep the page's board up to date while the application runs."""
    gateway: Gateway = app.state.gateway
    async with Watch(gateway.settings, calls=RECENT) as watch:
        app.state.board = Board(gateway.bus, watch)
        closing = asyncio.create_task(_close(gateway, app.state.board))
        try:
            async with app.state.board.running():
                yield
        finally:
            closing.cancel()


async def _close(gateway: Gateway, board: Board) -> None:
    """Let the pages go when the gateway is told to stop; it would wait for them otherwise."""
    await gateway.draining.wait()
    board.close()
