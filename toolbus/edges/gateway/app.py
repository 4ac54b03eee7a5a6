"""The table of all operations of the gateway, and its ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from toolbus.bus.support.latest import Latest
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.results import BrokerError, ToolResult
from toolbus.edges.gateway import calls, metrics, tool_calls, tools
from toolbus.edges.gateway.auth import credentials
from toolbus.edges.gateway.bodies import Problem, on_broker_error, on_bug, on_http_exception, on_problem
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.openapi import document
from toolbus.edges.gateway.operations import Admitted, Operation, routes_of
from toolbus.edges.gateway.options import Everyone
from toolbus.edges.gateway.page import board, files, routes

_MESSAGE = Annotated[
    Any,
    msgspec.Meta(
        description='A model\'s message as its provider gave it, or {"message": …} with options beside it.',
        extra_json_schema={"type": ["object", "array"]},
    ),
]


async def openapi(asked: Admitted[None]) -> Response:
    """Answer the document of what the sender may see."""
    gateway, principal = asked.gateway, asked.principal
    kept: Latest[Hashable, tuple[int, bytes]] = asked.request.app.state.documents
    tools = principal.sees(gateway.bus)
    version, found = tools.catalogue.version, kept.get(principal.sight)
    if found is None or found[0] != version:
        made = document(OPERATIONS, [tool for tool in tools.values() if tool.available], gateway.settings.max_timeout)
        found = (version, encode_data(made))
    kept[principal.sight] = found
    return Response(found[1], media_type="application/json")


OPERATIONS = (
    Operation("POST", "/run_tool", calls.run_tool, "Call a tool", body=calls.RunTool, answers=ToolResult, calls=True),
    # The document has it for each tool.
    Operation("POST", "/v1/tools/{name:path}/invoke", calls.invoke, None, body=dict[str, Any], answers=ToolResult, calls=True),
    Operation("POST", "/chat", calls.chat, "Talk to the chat service", body=calls.Chat, answers=calls.ChatAnswer, calls=True),
    Operation(
        "POST",
        "/v1/tool_calls",
        tool_calls.tool_calls,
        "Run the tool calls of a model's message",
        body=_MESSAGE,
        answers=tool_calls.Answers,
        calls=True,
    ),
    Operation("GET", "/v1/groups", tools.groups, "List groups", answers=tools.Groups),
    Operation("GET", "/v1/groups/{id:path}", tools.group, "Describe a group", answers=tools.Group, problems=(404,)),
    Operation(
        "PUT",
        "/v1/groups/{id:path}",
        tools.put_group,
        "Store a group",
        may=("operate",),
        body=tools.NewGroup,
        answers=tools.Group,
        statuses=(200, 201),
        problems=(503,),
    ),
    Operation(
        "DELETE", "/v1/groups/{id:path}", tools.delete_group, "Delete a group", may=("operate",), statuses=(204,), problems=(404, 422, 503)
    ),
    Operation("GET", "/tools", tools.everything, "All runtimes, groups and tools", answers=tools.Platform),
    Operation(
        "GET",
        "/v1/tools",
        tools.search_tools,
        "Find tools; with `format`, list their definitions for a model",
        query=tools.Search,
        answers=tools.Tools | list[dict[str, Any]],
        headers={"Link": "The next page of definitions."},
    ),
    Operation("GET", "/v1/tools/{name:path}", tools.describe_tool, "Describe a tool", answers=tools.Tool, problems=(404,)),
    Operation("GET", "/health", metrics.health, "Whether the gateway lives", may=(), answers=dict[str, str]),
    Operation("GET", "/ready", metrics.ready, "Whether it can do its work", may=(), answers=dict[str, str], problems=(503,)),
    Operation("GET", "/metrics", metrics.metrics, "Metrics for Prometheus", may=("observe",), answers=str, media_type="text/plain"),
    Operation("GET", "/openapi.json", openapi, None),
    *(Operation("GET", f"{credentials.PATH}{path}", credentials.metadata, None, may=()) for path in credentials.RESOURCES),
    *routes.OPERATIONS,
)
"""Everything that a gateway answers but the files of its page, and MCP clients; its routes and its OpenAPI document come from here."""


class _Mcp:
    """Hands the requests of MCP clients to the application of their gateway, made with the first one, if the extra is installed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if find_spec("mcp") is None:
            raise Problem(501, "not_installed", "this gateway speaks no MCP, since its extra is not installed: pip install 'toolbus[mcp]'")
        state = scope["app"].state
        if not hasattr(state, "mcp"):
            # Loading takes about a second, in which others are answered; requests that come meanwhile share the application.
            await asyncio.to_thread(import_module, "toolbus.edges.mcp.http")
        if not hasattr(state, "mcp"):
            from toolbus.edges.mcp.http import LazyEndpoint, McpEndpoint  # noqa: PLC0415 - most gateways start without an MCP client

            gateway: Gateway = state.gateway
            loopback = isinstance(gateway.authenticator, Everyone)
            state.mcp = LazyEndpoint(lambda: McpEndpoint(gateway.bus, gateway.admitted, loopback=loopback), gateway.stopping)
        await state.mcp(scope, receive, send)


# An endpoint that is no function takes every method.
ROUTES: list[BaseRoute] = [Route("/mcp", _Mcp()), *routes_of(OPERATIONS), *files.ROUTES]

# OpenAPI documents that are kept until the catalogue changes, by what their readers may see.
_MOST_KEPT = 64


def application(gateway: Gateway) -> Starlette:
    """Return the ASGI application of a gateway, whose bus is open while it runs."""
    handlers = {Problem: on_problem, HTTPException: on_http_exception, BrokerError: on_broker_error, Exception: on_bug}
    app = Starlette(routes=ROUTES, exception_handlers=handlers, lifespan=board.lifespan)
    app.state.gateway = gateway
    app.state.documents = Latest(_MOST_KEPT)
    return app
