"""Put the routes of the page together, and keep its board running."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from toolbus.gateway.gateway import Gateway
from toolbus.gateway.page import changing, files, reading, stream
from toolbus.gateway.page.board import Board
from toolbus.gateway.page.source import Source

ROUTES: list[BaseRoute] = [*files.ROUTES, *stream.ROUTES, *changing.ROUTES, *reading.ROUTES]


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep the page's board up to date while the application runs."""
    gateway: Gateway = app.state.gateway
    app.state.board = Board(gateway.bus, Source(gateway.bus))
    async with app.state.board.running():
        yield
