"""Run the tool calls of a model's message and answer the messages that the model is sent next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.toolcalls import ModelCall
from toolbus.gateway import turn_events
from toolbus.gateway.bodies import answer
from toolbus.gateway.disconnects import unless_disconnected
from toolbus.gateway.gateway import Gateway, gateway_of
from toolbus.gateway.principals import Principal
from toolbus.gateway.problems import Problem
from toolbus.gateway.session_results import recall, share
from toolbus.gateway.turn_requests import TurnOptions, TurnRequest, turn_request
from toolbus.results import BrokerError, ConfigurationError, ToolResult

_STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def tool_calls(request: Request) -> Response:
    """Answer ``{"messages": […], "calls": […]}``, or the same as the last of the server-sent events."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    asked = await turn_request(request)
    executor = _executor(gateway, principal, asked.options)
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(turn_events.with_heartbeats(_streamed(executor, asked)), 200, _STREAM, "text/event-stream")
    return answer(await unless_disconnected(request, _answered(executor, asked)))


def _executor(gateway: Gateway, principal: Principal, options: TurnOptions) -> ToolExecutor:
    limited = principal.groups is not None or principal.tools is not None
    # An executor that is given a view does not wait for tools that may yet appear.
    tools = principal.sees(gateway.bus) if limited else None
    try:
        return principal.view(gateway.bus).executor(tools=tools, **options.of_the_executor())
    except ConfigurationError as error:
        raise Problem(422, "invalid_options", str(error)) from None


async def _answered(executor: ToolExecutor, asked: TurnRequest) -> dict[str, Any]:
    try:
        await recall(executor, asked.calls)
        async with executor.turn(asked.calls, concurrent=asked.options.concurrent) as turn:
            results = await turn.results()
            messages = await turn.messages()
        await share(executor, asked.calls, results)
    except BrokerError as error:
        raise Problem(503, "unavailable", str(error), {"Retry-After": "1"}) from None
    except ConfigurationError as error:
        raise Problem(422, "invalid_options", str(error)) from None
    return _document(messages, asked.calls, results)


async def _streamed(executor: ToolExecutor, asked: TurnRequest) -> AsyncGenerator[bytes, None]:
    try:
        await recall(executor, asked.calls)
        async with executor.turn(asked.calls, concurrent=asked.options.concurrent, streaming=True) as turn:
            async for told in turn:
                yield turn_events.of_call(told)
            results = await turn.results()
            messages = await turn.messages()
        await share(executor, asked.calls, results)
    except BrokerError as error:
        yield turn_events.event("error", Problem(503, "unavailable", str(error)).document())
    except ConfigurationError as error:
        yield turn_events.event("error", Problem(422, "invalid_options", str(error)).document())
    else:
        yield turn_events.event("messages", _document(messages, asked.calls, results))


def _document(messages: list[dict[str, Any]], calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> dict[str, Any]:
    told = [
        {"id": call.id, "name": call.name, "success": result.success, "error": result.error, "changes": result.meta.changes}
        for call, result in zip(calls, results, strict=True)
    ]
    return {"messages": messages, "calls": told}


ROUTES = [Route("/v1/tool_calls", tool_calls, methods=["POST"])]
