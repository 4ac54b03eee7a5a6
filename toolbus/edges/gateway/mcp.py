"""Serve MCP clients at ``/mcp``, if the extra ``mcp`` is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.gateway import Gateway, gateway_of
from toolbus.edges.gateway.options import Everyone

if TYPE_CHECKING:
    from toolbus.edges.mcp.http import LazyEndpoint


def mcp_application(gateway: Gateway) -> LazyEndpoint:
    """Return the ASGI application that serves MCP clients, made with its first request."""
    from toolbus.edges.mcp.http import LazyEndpoint, McpEndpoint  # noqa: PLC0415 - most gateways start without an MCP client

    loopback = isinstance(gateway.authenticator, Everyone)
    return LazyEndpoint(lambda: McpEndpoint(gateway.bus, gateway.admitted, loopback=loopback), gateway.stopping)


class _Mcp:
    """Hands requests to the application of their gateway."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if find_spec("mcp") is None:
            raise Problem(501, "not_installed", "this gateway speaks no MCP, since its extra is not installed: pip install 'toolbus[mcp]'")
        state = scope["app"].state
        if not hasattr(state, "mcp"):
            state.mcp = mcp_application(gateway_of(HTTPConnection(scope)))
        await state.mcp(scope, receive, send)


# An endpoint that is no function takes every method.
ROUTES: list[BaseRoute] = [Route("/mcp", _Mcp())]
