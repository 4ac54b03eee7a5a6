"""Make the call that a request asks for, and answer its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolbus.bus import telemetry
from toolbus.bus.client.calls.call import Call
from toolbus.bus.values.options import ServiceCallOptions
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, ToolResult
from toolbus.edges.gateway.bodies import Problem, is_answer
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.options import Principal

TRACE = "traceparent"

# A call that is quicker than this needs nobody who watches for its client's leave.
_QUICK = 0.1
_LEFT: ErrorInfo | None = ErrorInfo("cancelled")


class RequestedCall(msgspec.Struct, frozen=True):
    """A call that a request asks for.

    Attributes:
        tool: name of the tool; empty for a call of a service.
        service: id of the service.
        arguments: as given.
        options: of the call.
    """

    tool: str
    arguments: Mapping[str, Any]
    options: ServiceCallOptions
    service: str = ""

    @property
    def name(self) -> str:
        """The tool, or the service without one."""
        return self.tool or self.service


def check_visible(gateway: Gateway, principal: Principal, tool: str) -> None:
    """Refuse a tool that a principal may not see, as one that does not exist.

    Raises:
        Problem: 404.
    """
    if (principal.groups is not None or principal.tools is not None) and tool not in principal.sees(gateway.bus):
        raise Problem(404, "not_found", f"there is no tool {tool!r}", code="unknown_tool")


def made(gateway: Gateway, principal: Principal, asked: RequestedCall) -> Call:
    """Return the call, which is not published yet.

    Raises:
        Problem: 422, an option is wrong.
    """
    try:
        if asked.tool:
            return principal.view(gateway.bus).stream(asked.tool, asked.arguments, **asked.options)
        return gateway.bus.service(asked.service).stream(principal.user, {}, asked.arguments, **asked.options)
    except ConfigurationError as error:
        raise Problem(422, "invalid_request", str(error)) from None


async def answered(request: Request, gateway: Gateway, call: Call, name: str) -> ToolResult:
    """Publish a call and return its result; when the client leaves, the call is cancelled, or kept for it to come back.

    Raises:
        Problem: 422, an option is wrong.
    """
    watching: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal watching
        watching = asyncio.get_running_loop().create_task(until_gone(request, gateway, call))

    measures, began, error = gateway.measures, time.monotonic(), _LEFT
    slot = gateway.deadlines.add(began + _QUICK, call.id, watch)
    measures.in_flight += 1
    try:
        with traced(request):
            result = await call.result()
        error = result.error
    except ConfigurationError as wrong:
        error = ErrorInfo("invalid_arguments")
        raise Problem(422, "invalid_request", str(wrong)) from None
    finally:
        gateway.deadlines.remove(slot, call.id)
        if watching is not None:
            watching.cancel()
        measures.in_flight -= 1
        measures.ended(name, time.monotonic() - began, error, known=call.request is not None)
    return result


async def until_gone(request: Request, gateway: Gateway, call: Call) -> None:
    """Wait until the client has gone, and end its call; one with an idempotency key after the time that it has to come back."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if is_resumable(call):
        await asyncio.sleep(gateway.options.resume)
    call.cancel()


def is_resumable(call: Call) -> bool:
    """Return whether another request can go on with a call."""
    return bool(call.options.get("idempotency_key"))


@contextmanager
def traced(request: Request) -> Iterator[None]:
    """Continue the caller's trace, if traces are exported."""
    if not telemetry.active():
        yield
        return
    with telemetry.continued(request.headers.get(TRACE, "")):
        yield


def trace_headers(request: Request, call: Call) -> dict[str, str]:
    """Return the trace context of the call's span, or that of the request."""
    if call.span is not None:
        return {TRACE: call.span.traceparent}
    return {}


def result_response(result: ToolResult, headers: dict[str, str]) -> Response:
    """Return the answer that a result is: itself, also for a failure of the tool's own.

    Raises:
        Problem: the call failed for another reason.
    """
    if not is_answer(result.error):
        raise problem_of(result, headers)
    return Response(msgspec.json.encode(result), 200, headers, "application/json")


def problem_of(result: ToolResult, headers: dict[str, str]) -> Problem:
    """Return the problem that a failed call is, with what it had answered until then."""
    if result.error is None:
        raise ValueError("the call has not failed")
    problem = Problem.of(result.error)
    problem.headers |= headers
    problem.members["id"] = result.meta.id
    if result.output or result.content:
        problem.members["result"] = result
    if problem.status in {429, 503}:
        problem.headers.setdefault("Retry-After", "1")
    return problem
