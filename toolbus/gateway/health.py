"""Say whether the gateway lives."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.gateway.bodies import answer


async def health(request: Request) -> Response:
    """Answer that the process lives."""
    return answer({"status": "ok"})


ROUTES = [Route("/health", health)]
