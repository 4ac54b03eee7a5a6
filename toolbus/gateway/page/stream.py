"""``GET /ui/events``: the state of the namespace, and then every change of it, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.page.board import Board
from toolbus.gateway.principals import Principal
from toolbus.gateway.problems import Problem

HEARTBEAT = 5.0
"""Longest silence in seconds; the page counts the gateway as away after twice as long."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


async def events(request: Request) -> Response:
    """Answer a stream of a ``snapshot`` and the ``change`` events that follow it."""
    principal = await gateway_of(request).authenticator.principal(request)
    if not principal.may & {"call", "observe"}:
        raise Problem(403, "forbidden", f"{principal.name} may neither call nor observe")
    board: Board | None = getattr(request.app.state, "board", None)
    if board is None:
        raise Problem(503, "unavailable", "this application was started without its lifespan, which keeps the page up to date")
    return StreamingResponse(_told(board, principal), 200, _HEADERS, "text/event-stream")


async def _told(board: Board, principal: Principal) -> AsyncIterator[bytes]:
    with board.watched(principal) as watcher:
        while not board.closed:
            news = await watcher.wait(HEARTBEAT)
            yield board.news(watcher) if news else b":\n\n"


ROUTES = [Route("/ui/events", events)]
