"""Talk to the chat service: ``POST /chat``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus.values.envelope import new_id
from toolbus.edges.gateway.bodies import Problem, answer, call_options, read, require_json, wants_events
from toolbus.edges.gateway.calls import RequestedCall, answered, made, problem_of, trace_headers
from toolbus.edges.gateway.gateway import Gateway, gateway_of
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.permissions import permitted
from toolbus.edges.gateway.run import respond


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /chat``; without a ``chat_id`` a new conversation begins."""

    message: str
    chat_id: Annotated[str, msgspec.Meta(max_length=255)] = ""


async def chat(request: Request) -> Response:
    """Hand a message to the chat service, in the session that its ``chat_id`` names."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    require_json(request)
    body = await read(request, Chat)
    chat_id = body.chat_id or new_id()
    options = call_options(request)
    options["session"] = chat_id
    asked = _asked(gateway, principal, {"message": body.message, "chat_id": chat_id})
    asked.options.update(options)
    if wants_events(request):
        return await respond(request, gateway, principal, asked)
    await gateway.reachable()
    call = made(gateway, principal, asked)
    await permitted(request, gateway, call)
    result = await answered(request, gateway, call, asked.name)
    headers = trace_headers(request, call)
    if not result.success:
        raise problem_of(result, headers)
    said = result.data.get("response") if isinstance(result.data, dict) else None
    return answer({"response": said if isinstance(said, str) else str(result), "chat_id": chat_id}, headers=headers)


def _asked(gateway: Gateway, principal: Principal, arguments: dict[str, Any]) -> RequestedCall:
    """Return the call of the chat service: of the tool with its name, else of the service.

    Raises:
        Problem: 503, there is none.
    """
    name = gateway.options.chat
    if name in principal.sees(gateway.bus):
        return RequestedCall(name, arguments, {})
    if name in gateway.bus.services and principal.groups is None and principal.tools is None:
        return RequestedCall("", arguments, {}, name)
    detail = f"no chat service is registered: start a worker that serves a tool or service with the name {name!r}"
    raise Problem(503, "unavailable", detail, {"Retry-After": "5"}, code="no_chat_service", retryable=True)


ROUTES = [Route("/chat", chat, methods=["POST"])]
