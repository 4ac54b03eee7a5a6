"""Answer the OpenAPI document: ``GET /openapi.json``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.gateway.gateway import gateway_of


async def openapi(request: Request) -> Response:
    """Answer the document."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    tools = principal.sees(gateway.bus)
    return Response(gateway.documents.of(tools.catalogue.version, principal, tools), media_type="application/json")


ROUTES = [Route("/openapi.json", openapi, methods=["GET"])]
