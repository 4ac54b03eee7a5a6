"""Put the gateway's routes together into one ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from toolbus.gateway import health
from toolbus.gateway.gateway import Gateway
from toolbus.gateway.page import routes as page
from toolbus.gateway.problems import Problem, on_http_exception, on_problem

# Each part of the gateway has its routes in a module of its own.
ROUTES: list[BaseRoute] = [*health.ROUTES, *page.ROUTES]


def application(gateway: Gateway) -> Starlette:
    """Return the ASGI application of a gateway, whose bus is open while it runs."""
    app = Starlette(routes=ROUTES, exception_handlers={Problem: on_problem, HTTPException: on_http_exception}, lifespan=page.lifespan)
    app.state.gateway = gateway
    return app
