"""Isolated tools that tell of their trace, in a module of their own: the processes that run them export spans."""

from __future__ import annotations

import sys

from opentelemetry import trace

from toolbus import tool
from toolbus.bus.worker import isolation

if isolation.inside:
    # Only there: in the tests' own process a provider would be every test's.
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def ids() -> list[str]:
    """The current trace and span, and the trace and parent of a span that is started here."""
    current = trace.get_current_span().get_span_context()
    with trace.get_tracer("handler").start_as_current_span("within") as span:
        own, parent = span.get_span_context(), getattr(span, "parent", None)
    about = [trace.format_trace_id(current.trace_id), trace.format_span_id(current.span_id), trace.format_trace_id(own.trace_id)]
    return [*about, "" if parent is None else trace.format_span_id(parent.span_id)]


@tool(effect="read", isolation="process")
def iso_trace() -> list[str]:
    """Tell of the trace."""
    return ids()


@tool(effect="read", isolation="process")
async def iso_trace_async() -> list[str]:
    """Tell of the trace in a coroutine."""
    return ids()


@tool(effect="read", isolation="process")
def iso_has_sdk() -> bool:
    """Tell whether a trace was continued in this process."""
    return "toolbus.bus.telemetry.spans" in sys.modules
