"""Say whether the gateway lives, and whether it can do its work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.gateway import check_query, gateway_of


async def health(request: Request) -> Response:
    """Answer that the process lives."""
    check_query(request)
    return answer({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer that requests can be served, or 503: the server is away, or the gateway stops."""
    check_query(request)
    gateway = gateway_of(request)
    if gateway.stopping.is_set():
        raise Problem(503, "unavailable", "the gateway is stopping", {"Retry-After": "1"}, code="stopping", retryable=True)
    if not gateway.connected or not await gateway.answers():
        detail = "the server does not answer, or the gateway has lost its connection to it and is restoring it"
        raise Problem(503, "unavailable", detail, {"Retry-After": "1"}, code="no_server", retryable=True)
    return answer({"status": "ready"})


ROUTES = [Route("/health", health), Route("/ready", ready)]
