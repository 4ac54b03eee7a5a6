"""Answer what the page reads when somebody opens something: a tool, a dead letter, a confirmation, the graph, the pins."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.broker.admin import Admin
from toolbus.client.tools.catalogue import Catalogue
from toolbus.gateway.bodies import answer
from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.problems import Problem
from toolbus.results import BrokerError, ConfigurationError, ConfirmationClosed

_MOST_SHOWN = 65_536
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def shown(document: Any) -> Response:
    """Return a JSON answer that no cache keeps."""
    return answer(document, headers=_HEADERS)


def unreachable(error: BrokerError) -> Problem:
    """Return the problem of a server that can't be reached or refuses."""
    return Problem(503, "unavailable", str(error), {"Retry-After": "1"}, retryable=True)


async def tool(request: Request) -> Response:
    """Answer everything that is known of a tool that the principal sees."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request, "call", "observe")
    found = principal.sees(gateway.bus).get(request.path_params["name"])
    if found is None:
        raise Problem(404, "not_found", "there is no such tool, or not for you")
    about = found.descriptor
    return shown(
        {
            "name": found.name,
            "service": found.service,
            "description": about.description[:_MOST_SHOWN],
            "parameters": found.parameters,
            "category": about.category,
            "groups": about.groups,
            "effect": about.effect,
            "confirm": about.confirm,
            "external": about.external,
            "timeout": about.timeout,
            "owner": found.owner,
            "digest": found.digest,
            "available": found.available,
        }
    )


async def dead_letter(request: Request) -> Response:
    """Answer a dead letter with its request."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    try:
        async with Admin(gateway.settings) as admin:
            found = await admin.dead_letters.get(request.path_params["queue"], request.path_params["id"])
    except ConfigurationError as error:
        raise Problem(404, "not_found", str(error)) from None
    except BrokerError as error:
        raise unreachable(error) from None
    # A request that can't be read is shown as text, as far as possible.
    document: Any = found.document[:_MOST_SHOWN].decode("utf-8", "backslashreplace") if found.request is None else found.request
    return shown(
        {
            "id": found.id,
            "queue": found.queue,
            "reason": found.reason,
            "attempts": found.attempts,
            "error": found.error,
            "request": document,
        }
    )


async def confirmation(request: Request) -> Response:
    """Answer a request that waits for a person, with all of its arguments."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    try:
        found = await gateway.bus.confirmations.get(request.path_params["id"])
        return shown(found.visible())
    except ConfirmationClosed as error:
        raise Problem(404, "not_found", str(error)) from None
    except BrokerError as error:
        raise unreachable(error) from None


async def graph(request: Request) -> Response:
    """Answer the published toolkit graph as the page draws it."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    # Laying out a large graph takes a while, and the event loop has streams to serve.
    return shown(await asyncio.to_thread(_graph, gateway.bus.tools.catalogue))


def _graph(catalogue: Catalogue) -> dict[str, Any]:
    try:
        from toolbus.toolkit.live import published  # noqa: PLC0415 - its packages come with an extra
        from toolbus.toolkit.page import MOST, picture  # noqa: PLC0415
    except ImportError:
        return {"missing": "pip install 'toolbus[toolkit]'"}
    return picture(published(catalogue), MOST)


ROUTES = [
    Route("/ui/tools/{name}", tool),
    Route("/ui/dead/{queue:path}/{id}", dead_letter),
    Route("/ui/confirmations/{id}", confirmation),
    Route("/ui/graph", graph),
]
