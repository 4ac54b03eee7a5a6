"""Call tools: ``POST /run_tool`` and ``POST /v1/tools/{name}/invoke``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toolbus.edges.gateway.bodies import RESUME, Problem, call_options, read, require_json, wants_events
from toolbus.edges.gateway.calls import RequestedCall, answered, check_visible, made, result_response, trace_headers
from toolbus.edges.gateway.gateway import Gateway, gateway_of
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.permissions import permission_of, permitted
from toolbus.edges.gateway.positions import Position, read_id
from toolbus.edges.gateway.streaming import event_stream


class Endpoint:
    """Answers requests with a function, for routes that are used thousands of times a second.

    Args:
        handler: returns the answer to a request; what it raises is handled by the application.
    """

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


class RunTool(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The body of ``POST /run_tool``."""

    tool_id: str
    params: dict[str, Any] = {}


async def run_tool(request: Request) -> Response:
    """Call the tool that the body names."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    require_json(request)
    body = await read(request, RunTool)
    return await run(request, gateway, principal, body.tool_id, body.params)


async def invoke(request: Request) -> Response:
    """Call the tool that the path names; the body has its arguments."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    require_json(request)
    arguments = await read(request, dict[str, Any])
    return await run(request, gateway, principal, request.path_params["name"], arguments)


async def run(request: Request, gateway: Gateway, principal: Principal, tool: str, arguments: dict[str, Any]) -> Response:
    """Call a tool, and answer its result or its events.

    Raises:
        Problem: the call failed for another reason than the tool's own, or can't be made.
    """
    if not tool:
        raise Problem(422, "invalid_body", "a tool has a name; the empty text is none")
    check_visible(gateway, principal, tool)
    return await respond(request, gateway, principal, RequestedCall(tool, arguments, call_options(request)))


async def respond(request: Request, gateway: Gateway, principal: Principal, asked: RequestedCall) -> Response:
    """Make a call, and answer its events if the client asks for them, else its result.

    Raises:
        Problem: see ``run``.
    """
    await gateway.reachable()
    if wants_events(request):
        had = _resumed(request, asked)
        call = made(gateway, principal, asked)
        return await event_stream(request, gateway, call, asked.name, had, permission_of(gateway, call))
    call = made(gateway, principal, asked)
    await permitted(request, gateway, call)
    result = await answered(request, gateway, call, asked.name)
    return result_response(result, trace_headers(request, call))


def _resumed(request: Request, asked: RequestedCall) -> Position | None:
    """Return the client's position in a call that it comes back to, whose key becomes the call's."""
    last = request.headers.get(RESUME)
    if not last:
        return None
    position, key = read_id(last)
    given = asked.options.setdefault("idempotency_key", key)
    if given != key:
        raise Problem(422, "invalid_header", "Last-Event-ID is of a call with another Idempotency-Key")
    return position


ROUTES = [
    Route("/run_tool", Endpoint(run_tool), methods=["POST"]),
    Route("/v1/tools/{name:path}/invoke", Endpoint(invoke), methods=["POST"]),
]
