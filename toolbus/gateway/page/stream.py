"""``GET /ui/events``: the state of the namespace, and then every change of it, as server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from toolbus.gateway.bodies import Problem
from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.page.board import Board
from toolbus.gateway.principals import Principal
from toolbus.gateway.streaming import COMMENT

HEARTBEAT = 5.0
"""Longest silence in seconds; the page counts the gateway as away after twice as long."""

RECHECK = 30.0
"""Seconds after which a stream looks again whether its token still holds."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


async def events(request: Request) -> Response:
    """Answer a stream of a ``snapshot`` and the ``change`` events that follow it."""
    principal = await gateway_of(request).admitted(request, "call", "observe")
    board: Board | None = getattr(request.app.state, "board", None)
    if board is None:
        raise Problem(503, "unavailable", "this application was started without its lifespan, which keeps the page up to date")
    return StreamingResponse(_told(request, board, principal), 200, _HEADERS, "text/event-stream")


async def _told(request: Request, board: Board, principal: Principal) -> AsyncIterator[bytes]:
    checked = time.monotonic()
    with board.watched(principal) as watcher:
        while not board.closed:
            news = await watcher.wait(HEARTBEAT)
            if time.monotonic() - checked >= RECHECK:
                checked = time.monotonic()
                if not await _holds(request, principal):
                    return
            yield board.news(watcher) if news else COMMENT


async def _holds(request: Request, principal: Principal) -> bool:
    """Return whether the sender is still who it was; a page that is refused when it comes back asks for a token."""
    try:
        return await gateway_of(request).authenticator.principal(request) == principal
    except Problem:
        return False


ROUTES = [Route("/ui/events", events)]
