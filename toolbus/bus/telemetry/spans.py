"""Spans of a call: one pair at its agent, and one for each run at a worker.

OpenTelemetry is loaded with the first span that is exported.
"""

from __future__ import annotations

# ruff: noqa: PLC0415 - see above
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolbus.bus.support.safe_text import is_a, reason_of, traceback_of, type_name
from toolbus.bus.telemetry.providers import active, tracer
from toolbus.bus.values.results import CallCancelled, ErrorInfo, ToolError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

# https://www.w3.org/TR/trace-context/#traceparent-header; only versions after 00 may have further fields.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


class CallSpan:
    """The agent's two spans of one call: ``execute_tool {tool}``, and within it ``send {service}``.

    Attributes:
        traceparent: W3C trace context for the request, or empty; the handler's span continues from it.
    """

    __slots__ = ("_send", "_tool", "traceparent")

    def __init__(self, tool: Span, send: Span | None) -> None:
        self._tool = tool
        self._send = send
        context = (send or tool).get_span_context()
        self.traceparent = ""
        if context.is_valid:
            self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def sent(self, error: ErrorInfo | None = None) -> None:
        """End the ``send`` span when the server has answered the publication; ``end()`` does it otherwise."""
        send, self._send = self._send, None
        if send is not None:
            _end(send, error)

    def end(self, error: ErrorInfo | None = None) -> None:
        """End both spans with the result of the call."""
        self.sent()
        _end(self._tool, error)


class HandlerSpan:
    """The worker's span of one run, ``process {service}``; current while the handler runs."""

    __slots__ = ("_failed", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._failed = False

    def fail(self, error: ErrorInfo) -> None:
        """Mark the run as failed; later calls don't change the reason."""
        if not self._failed:
            self._failed = True
            _fail(self._span, error)


def start_call_span(*, tool: str, service: str, id: str, agent: str, context: Context | None = None) -> CallSpan | None:
    """Start the spans of a call under ``context`` (the current one); return None when spans are not exported.

    The caller ends them with ``CallSpan.end()``. They are never made current, so any task may end them.
    """
    if not active():
        return None
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind

    starts = tracer()
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool or service,
        "gen_ai.tool.call.id": id,
        "gen_ai.tool.type": "function",
    }
    outer = starts.start_span(f"execute_tool {tool or service}", context, SpanKind.INTERNAL, about)
    if not outer.is_recording():
        # Nobody would see one within it.
        return CallSpan(outer, None)
    inner = starts.start_span(
        f"send {service}", trace.set_span_in_context(outer, context), SpanKind.PRODUCER, _message("send", service, id, agent)
    )
    return CallSpan(outer, inner)


@contextmanager
def handler_span(traceparent: str, *, tool: str, service: str, id: str, attempt: int, worker: str) -> Iterator[HandlerSpan | None]:
    """Run the body within the span of one run, which continues the caller's trace; yield None when spans are not exported.

    An exception from the body is recorded with the error type that the caller will see.
    """
    if not active():
        yield None
        return
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind

    context = _calling(traceparent)
    about = _message("process", service, id, worker) | {
        "gen_ai.tool.name": tool or service,
        "gen_ai.tool.call.id": id,
        "toolbus.attempt": attempt,
    }
    span = tracer().start_span(f"process {service}", context, SpanKind.CONSUMER, about)
    handler = HandlerSpan(span)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield handler
        except Exception as error:
            _record(span, error)
            handler.fail(_error_of(error))
            raise
        except BaseException:
            handler.fail(ErrorInfo("cancelled"))
            raise


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Run the body within the trace that a ``traceparent`` names; do nothing when it names none, or spans are not exported."""
    if not active() or _TRACEPARENT(traceparent) is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(_calling(traceparent))
    try:
        yield
    finally:
        context.detach(token)


def _calling(traceparent: str) -> Context:
    """Return the context of the caller's span, or an empty one. It does what the propagator does, in a fifth of the time."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    found = _TRACEPARENT(traceparent)
    if found is None or (found[5] and found[1] == "00"):
        return Context()
    trace_id, span_id, flags = int(found[2], 16), int(found[3], 16), int(found[4], 16)
    remote = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context()) if remote.is_valid else Context()


def _record(span: Span, error: Exception) -> None:
    try:
        span.record_exception(error)
    except BaseException:  # noqa: BLE001 - it asks the class, which is the user's
        told = {"exception.type": type_name(error), "exception.message": reason_of(error), "exception.stacktrace": traceback_of(error)}
        span.add_event("exception", told)


def _error_of(error: Exception) -> ErrorInfo:
    if is_a(error, ToolError):
        return error.error
    return ErrorInfo("cancelled" if is_a(error, CallCancelled) else "tool_error", message=reason_of(error))


def _message(operation: str, service: str, id: str, client: str) -> dict[str, str | int]:
    return {
        "messaging.system": "redis",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": service,
        "messaging.message.id": id,
        "messaging.client.id": client,
    }


def _end(span: Span, error: ErrorInfo | None) -> None:
    if error is not None:
        _fail(span, error)
    span.end()


def _fail(span: Span, error: ErrorInfo) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error.type)
    span.set_status(StatusCode.ERROR, str(error))
