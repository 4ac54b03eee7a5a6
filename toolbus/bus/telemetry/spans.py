"""Spans of a call: one at its agent, and one for each run at a worker."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import Self

import msgspec
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from toolbus.bus.support.safe_text import is_a, reason_of, traceback_of, type_name
from toolbus.bus.telemetry.contained import contained, report_failure
from toolbus.bus.telemetry.events import NAME
from toolbus.bus.telemetry.lean import FLAGS, SAMPLED, Lean, context_of
from toolbus.bus.telemetry.providers import active
from toolbus.bus.values.results import CallCancelled, ErrorInfo, ToolError

# https://www.w3.org/TR/trace-context/#traceparent-header; only versions after 00 may have further fields.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


# One of the first version whose trace is not sampled.
_DROPPED = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[02]").fullmatch
_UNSAMPLED = ("00", "02")
(_KEY,) = set_span_in_context(INVALID_SPAN, Context())
"""Of the current span in a context."""

_made: tuple[TracerProvider, Tracer, Lean | None] | None = None


def _forget() -> None:
    """Begin other traces in a process that was forked than its parent does."""
    global _made  # noqa: PLW0603 - see _tracer
    _made = None


os.register_at_fork(after_in_child=_forget)


def _tracer(provider: TracerProvider) -> tuple[Tracer, Lean | None]:
    """Return the tracer that starts spans, and what makes them in its place, if something can."""
    global _made  # noqa: PLW0603 - a cache per provider
    if _made is None or _made[0] is not provider or (_made[2] is not None and not _made[2].holds()):
        starts = get_tracer(NAME, tracer_provider=provider)
        try:
            _made = provider, starts, Lean(starts)
        except (ImportError, AttributeError, TypeError, ValueError):
            _made = provider, starts, None
    return _made[1:]


class CallSpan(msgspec.Struct, eq=False):
    """The agent's span of one call, ``execute_tool {tool}``.

    Attributes:
        traceparent: W3C trace context for the request, or empty; the handler's span continues from it.
        span: itself, if it may be exported.
    """

    traceparent: str
    span: Span | None

    def end(self, error: ErrorInfo | None = None) -> None:
        """End it with the result of the call."""
        if self.span is None:
            return
        try:
            if error is not None:
                _fail(self.span, error)
            self.span.end()
        except Exception:  # noqa: BLE001 - it is the application's code
            report_failure("spans")


class HandlerSpan(msgspec.Struct, eq=False):
    """The worker's span of one run, ``process {service}``; current until its ``with`` block ends, in which the handler runs.

    An exception from the block is recorded with the error type that the caller will see.

    Attributes:
        token: takes it away again as the current one.
        span: itself, if it may be exported.
    """

    token: Token[Context]
    span: Span | None
    _failed: bool = False

    @contained("spans")
    def fail(self, error: ErrorInfo) -> None:
        """Mark the run as failed; later calls don't change the reason."""
        if self.span is not None and not self._failed:
            self._failed = True
            _fail(self.span, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        detach(self.token)
        if self.span is not None:
            self._end(self.span, error)

    @contained("spans")
    def _end(self, span: Span, error: BaseException | None) -> None:
        try:
            if error is not None:
                if is_a(error, Exception):
                    _record(span, error)
                self.fail(_error_of(error))
        finally:
            span.end()


def start_call_span(*, tool: str, service: str, id: str, agent: str) -> CallSpan | None:
    """Start the span of a call under the current context; return None when spans are not exported.

    The caller ends it with ``CallSpan.end()``. It is never made current, so any task may end it.
    """
    provider = active()
    if provider is None:
        return None
    try:
        starts, lean = _tracer(provider)
        within = get_current()
        parent = get_current_span(within).get_span_context() if within else None
        drawn, header = None, ""
        if lean is not None:
            if parent is None or not parent.is_valid:
                header = lean.root()
            else:
                drawn = lean.draw(parent)
                header = _traceparent(*drawn)
            if header.endswith(_UNSAMPLED):
                return CallSpan(header, None)
        about = _message("send", service, id, agent, tool)
        about["gen_ai.operation.name"] = "execute_tool"
        about["gen_ai.tool.type"] = "function"
        name = f"execute_tool {tool or service}"
        if lean is not None:
            drawn = drawn or (int(header[3:35], 16), int(header[36:52], 16), int(header[53:], 16))
            return CallSpan(header, lean.keep(name, drawn, parent, SpanKind.PRODUCER, about))
        span = starts.start_span(name, within, SpanKind.PRODUCER, about)
        made = span.get_span_context()
        return CallSpan(_traceparent(made.trace_id, made.span_id, made.trace_flags) if made.is_valid else "", span)
    except Exception:  # noqa: BLE001 - it is the application's code
        report_failure("spans")
        return None


def handler_span(traceparent: str, *, tool: str, service: str, id: str, attempt: int, worker: str) -> HandlerSpan | None:
    """Start the span of one run, which continues the caller's trace, and make it current; return None when spans are not exported.

    It is alone in its context: baggage there would be that of whoever started the worker, not the caller's.
    """
    provider = active()
    if provider is None:
        return None
    try:
        starts, lean = _tracer(provider)
        if lean is not None:
            if lean.follows and _DROPPED(traceparent) is not None:
                return HandlerSpan(attach(Context({_KEY: _Dropped(lean, traceparent)})), None)
            caller = _caller(traceparent)
            drawn = lean.draw(caller)
            if not drawn[2] & SAMPLED:
                return HandlerSpan(attach(Context({_KEY: NonRecordingSpan(context_of(drawn, None))})), None)
        name, about = f"process {service}", {**_message("process", service, id, worker, tool), "toolbus.attempt": attempt}
        if lean is None:
            span = starts.start_span(name, _within(_caller(traceparent)), SpanKind.CONSUMER, about)
        else:
            span = lean.keep(name, drawn, caller, SpanKind.CONSUMER, about)
        return HandlerSpan(attach(Context({_KEY: span})), span)
    except Exception:  # noqa: BLE001 - it is the application's code
        report_failure("spans")
        return None


def _traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return the header. Bytes are written in hexadecimal in a third of the time that integers are."""
    return f"00-{trace_id.to_bytes(16).hex()}-{span_id.to_bytes(8).hex()}-{flags:02x}"


@contained("spans")
def _current() -> str:
    made = get_current_span().get_span_context()
    return _traceparent(made.trace_id, made.span_id, made.trace_flags) if made.is_valid else ""


def current_traceparent() -> str:
    """Return the header that names the current span, or an empty text when there is none."""
    return _current() or ""


_drawing = threading.Lock()


class _Dropped(NonRecordingSpan):
    """The span of a run that follows its caller's decision to drop it; it has ids when somebody asks for them."""

    def __init__(self, lean: Lean, traceparent: str) -> None:
        self._lean, self._traceparent = lean, traceparent

    def __getattr__(self, name: str) -> SpanContext:
        # What the class above has from the start.
        if name != "_context":
            raise AttributeError(name)
        with _drawing:
            if name not in vars(self):
                self._context = context_of(self._lean.draw(_caller(self._traceparent)), None)
        found: SpanContext = vars(self)[name]
        return found


@contextmanager
def continued(traceparent: str, *, exported: bool = True) -> Iterator[None]:
    """Run the body within the trace that a ``traceparent`` names; do nothing when it names none.

    Unless ``exported`` is false, do nothing either when this process does not export spans.
    """
    if (exported and active() is None) or _TRACEPARENT(traceparent) is None:
        yield
        return
    token = attach(_within(_caller(traceparent)))
    try:
        yield
    finally:
        detach(token)


def _caller(traceparent: str) -> SpanContext | None:
    """Return the context of the caller's span, if it names one. It does what the propagator does, in a fifth of the time."""
    found = _TRACEPARENT(traceparent)
    if found is None or (found[5] and found[1] == "00"):
        return None
    flags = int(found[4], 16)
    remote = SpanContext(int(found[2], 16), int(found[3], 16), True, FLAGS[flags] if flags < len(FLAGS) else TraceFlags(flags))
    return remote if remote.is_valid else None


def _within(caller: SpanContext | None) -> Context:
    return Context() if caller is None else set_span_in_context(NonRecordingSpan(caller), Context())


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


def _message(operation: str, service: str, id: str, client: str, tool: str) -> dict[str, str | int]:
    return {
        "gen_ai.tool.name": tool or service,
        "gen_ai.tool.call.id": id,
        "messaging.system": "redis",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": service,
        "messaging.message.id": id,
        "messaging.client.id": client,
    }


def _fail(span: Span, error: ErrorInfo) -> None:
    span.set_attribute("error.type", error.type)
    span.set_status(StatusCode.ERROR, str(error))
