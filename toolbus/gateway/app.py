"""Put the gateway's routes together into one ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from toolbus.gateway import health, tool_calls
from toolbus.gateway.auth import metadata
from toolbus.gateway.gateway import Gateway
from toolbus.gateway.problems import Problem, on_http_exception, on_problem

# Each part of the gateway has its routes in a module of its own.
ROUTES: list[BaseRoute] = [
    *health.ROUTES,
    *tool_calls.ROUTES,
    *metadata.ROUTES,
]


def application(gateway: Gateway) -> Starlette:
    """Return the ASGI application of a gateway, whose bus is open while it runs."""
    app = Starlette(routes=ROUTES, exception_handlers={Problem: on_problem, HTTPException: on_http_exception})
    app.state.gateway = gateway
    return app
