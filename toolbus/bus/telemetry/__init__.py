"""Logs, spans and metrics: their names, and the functions that emit them.

Nothing here has a measurable cost until an application asks for telemetry:
``logs()``, ``active()`` and ``metering()`` answer in about 0.1 µs whether anything is configured.
Names follow OpenTelemetry's conventions for tools (``gen_ai.*``) and messaging.
"""

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily
from toolbus.bus.telemetry.events import EVENTS, NAME
from toolbus.bus.telemetry.metrics import METRICS, count, record_call, record_run
from toolbus.bus.telemetry.output import LogFormat, flush_logging
from toolbus.bus.telemetry.providers import active, logs, metering, providers

if TYPE_CHECKING:
    from toolbus.bus.telemetry.export import configure_export
    from toolbus.bus.telemetry.logger import configure_logging, log
    from toolbus.bus.telemetry.spans import CallSpan, HandlerSpan, continued, current_traceparent, handler_span, start_call_span

__all__ = [
    "EVENTS",
    "METRICS",
    "NAME",
    "CallSpan",
    "HandlerSpan",
    "LogFormat",
    "active",
    "configure_export",
    "configure_logging",
    "continued",
    "count",
    "current_traceparent",
    "flush_logging",
    "handler_span",
    "log",
    "logs",
    "metering",
    "providers",
    "record_call",
    "record_run",
    "start_call_span",
]

# structlog takes 10 ms to load, and OpenTelemetry as long: who only describes tools need not wait for them.
__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.bus.telemetry.logger": ["configure_logging", "log"],
        "toolbus.bus.telemetry.export": ["configure_export"],
        "toolbus.bus.telemetry.spans": [
            "CallSpan",
            "HandlerSpan",
            "continued",
            "current_traceparent",
            "handler_span",
            "start_call_span",
        ],
    },
)
