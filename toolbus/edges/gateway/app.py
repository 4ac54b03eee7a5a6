"""Put the gateway's routes together into one ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from toolbus.bus.values.results import BrokerError
from toolbus.edges.gateway import chat, groups, mcp, metrics, run, tool_calls, tools
from toolbus.edges.gateway import gateway as openapi
from toolbus.edges.gateway.auth import metadata
from toolbus.edges.gateway.bodies import Problem, on_broker_error, on_bug, on_http_exception, on_problem
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.page import routes as page

# Each part of the gateway has its routes in a module of its own.
ROUTES: list[BaseRoute] = [
    *run.ROUTES,
    *chat.ROUTES,
    *groups.ROUTES,
    *tools.ROUTES,
    *metrics.ROUTES,
    *openapi.ROUTES,
    *tool_calls.ROUTES,
    *metadata.ROUTES,
    *mcp.ROUTES,
    *page.ROUTES,
]


def application(gateway: Gateway) -> Starlette:
    """Return the ASGI application of a gateway, whose bus is open while it runs."""
    handlers = {Problem: on_problem, HTTPException: on_http_exception, BrokerError: on_broker_error, Exception: on_bug}
    app = Starlette(routes=ROUTES, exception_handlers=handlers, lifespan=page.lifespan)
    app.state.gateway = gateway
    return app
