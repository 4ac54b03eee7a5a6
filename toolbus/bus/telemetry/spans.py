"""Spans of a call: one pair at its agent, and one for each run at a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Self

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from toolbus.bus.support.safe_text import is_a, reason_of, traceback_of, type_name
from toolbus.bus.telemetry.providers import active, tracer
from toolbus.bus.values.results import CallCancelled, ErrorInfo, ToolError

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
    """The worker's span of one run, ``process {service}``; current within its ``with`` block, where the handler runs.

    An exception from the block is recorded with the error type that the caller will see.
    """

    __slots__ = ("_failed", "_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._failed = False

    def fail(self, error: ErrorInfo) -> None:
        """Mark the run as failed; later calls don't change the reason."""
        if not self._failed:
            self._failed = True
            _fail(self._span, error)

    def __enter__(self) -> Self:
        self._token = attach(set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            if error is not None:
                if is_a(error, Exception):
                    _record(self._span, error)
                self.fail(_error_of(error))
        finally:
            detach(self._token)
            self._span.end()


def start_call_span(*, tool: str, service: str, id: str, agent: str, context: Context | None = None) -> CallSpan | None:
    """Start the spans of a call under ``context`` (the current one); return None when spans are not exported.

    The caller ends them with ``CallSpan.end()``. They are never made current, so any task may end them.
    """
    if not active():
        return None
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
        f"send {service}", set_span_in_context(outer, context), SpanKind.PRODUCER, _message("send", service, id, agent)
    )
    return CallSpan(outer, inner)


def handler_span(
    traceparent: str, *, tool: str, service: str, id: str, attempt: int, worker: str
) -> AbstractContextManager[HandlerSpan | None]:
    """Start the span of one run, which continues the caller's trace; ``with`` gives None when spans are not exported."""
    if not active():
        return nullcontext()
    about = _message("process", service, id, worker)
    about["gen_ai.tool.name"] = tool or service
    about["gen_ai.tool.call.id"] = id
    about["toolbus.attempt"] = attempt
    return HandlerSpan(tracer().start_span(f"process {service}", _calling(traceparent), SpanKind.CONSUMER, about))


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Run the body within the trace that a ``traceparent`` names; do nothing when it names none, or spans are not exported."""
    if not active() or _TRACEPARENT(traceparent) is None:
        yield
        return
    token = attach(_calling(traceparent))
    try:
        yield
    finally:
        detach(token)


def _calling(traceparent: str) -> Context:
    """Return the context of the caller's span, or an empty one. It does what the propagator does, in a fifth of the time."""
    found = _TRACEPARENT(traceparent)
    if found is None or (found[5] and found[1] == "00"):
        return Context()
    trace_id, span_id, flags = int(found[2], 16), int(found[3], 16), int(found[4], 16)
    remote = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(remote), Context()) if remote.is_valid else Context()


def _record(span: Span, error: Exception) -> None:
    try:
        span.record_exception(error)
    except BaseException:  # noqa: BLE001 - it asks the class, which is the user's
        told = {"exception.type": type_name(error), "exception.message": reason_of(error), "exception.stacktrace": traceback_of(error)}
        span.add_event("exception", told)


def _error_of(error: BaseException) -> ErrorInfo:
    if is_a(error, ToolError):
        return error.error
    if is_a(error, CallCancelled):
        return ErrorInfo("cancelled", message=reason_of(error))
    return ErrorInfo("tool_error", message=reason_of(error)) if is_a(error, Exception) else ErrorInfo("cancelled")


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
    span.set_attribute("error.type", error.type)
    span.set_status(StatusCode.ERROR, str(error))
