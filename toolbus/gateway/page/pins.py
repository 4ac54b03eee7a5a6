"""Answer what is pinned: descriptors that a person approved."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.page.reading import shown


async def pins(request: Request) -> Response:
    """Answer the pins of the namespace."""
    await gateway_of(request).admitted(request, "observe")
    return shown([])


ROUTES = [Route("/ui/pins", pins)]
