"""Tell whether events are logged and spans and metrics exported, and through what: the application decides."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolbus.bus.telemetry.events import NAME

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

logger = logging.getLogger(NAME)
"""The logger of all events; its handlers are the application's choice."""

logger.addHandler(logging.NullHandler())

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""The standard library's number of each method of a logger."""

ours: list[bool] = []
"""Not empty when the configuration of structlog in this process is ours."""


def application_logs() -> bool:
    """Return whether the application has configured structlog, and gets the events there."""
    return not ours and "structlog" in sys.modules and bool(sys.modules["structlog"].is_configured())


def logs(level: int) -> bool:
    """Return whether a level (``logging.DEBUG``, …) is logged; cheap enough for the hot path."""
    return logger.isEnabledFor(level) or application_logs()


_tracer_provider: TracerProvider | None = None
_meter_provider: MeterProvider | None = None
_tracer: tuple[TracerProvider, Tracer] | None = None

# Until an SDK is loaded, `get_tracer_provider()` reads the environment each time (0.9 µs) for one variable that makes it
# load an SDK. When that variable is not set, reading the global that it returns is enough.
_TRACER_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
_METER_NAMED = "OTEL_PYTHON_METER_PROVIDER" in os.environ


class _Tracing:
    """OpenTelemetry's tracing API, once it is loaded.

    Attributes:
        api: the module.
        silent: the classes of providers that export nothing.
        has_global: whether the provider can be read without a call.
    """

    def __init__(self) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - see the module's docstring

        self.api: Any = trace
        self.silent = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
        self.has_global = hasattr(trace, "_TRACER_PROVIDER") and not _TRACER_NAMED


class _Metering:
    """OpenTelemetry's metrics API, once it is loaded.

    Attributes:
        api: the module.
        internal: the module with the global provider.
        silent: the module of the providers that export nothing; real ones come from elsewhere.
        has_global: whether the provider can be read without a call.
    """

    def __init__(self) -> None:
        from opentelemetry import metrics  # noqa: PLC0415 - see the module's docstring

        self.api: Any = metrics
        self.internal: Any = getattr(metrics, "_internal", None)
        # The API's own proxy has no public name. It and the no-op provider share a module.
        self.silent = metrics.NoOpMeterProvider.__module__
        self.has_global = hasattr(self.internal, "_METER_PROVIDER") and not _METER_NAMED


_tracing: _Tracing | None = None
_metering: _Metering | None = None


def active() -> bool:
    """Return whether spans are exported: an SDK's tracer provider is configured."""
    if _tracing is None and not _TRACER_NAMED and "opentelemetry.trace" not in sys.modules:
        return False
    tracing = _tracing or _load_tracing()
    provider = _tracer_provider
    if provider is None:
        provider = tracing.api._TRACER_PROVIDER if tracing.has_global else tracing.api.get_tracer_provider()
    return provider is not None and not isinstance(provider, tracing.silent)


def metering() -> bool:
    """Return whether metrics are exported: an SDK's meter provider is configured."""
    if _metering is None and not _METER_NAMED and "opentelemetry.metrics" not in sys.modules:
        return False
    found = _metering or _load_metering()
    provider = _meter_provider
    if provider is None:
        provider = found.internal._METER_PROVIDER if found.has_global else found.api.get_meter_provider()
    return provider is not None and type(provider).__module__ != found.silent


def _load_tracing() -> _Tracing:
    global _tracing  # noqa: PLW0603 - it is loaded once in a process
    _tracing = _Tracing()
    return _tracing


def _load_metering() -> _Metering:
    global _metering  # noqa: PLW0603 - it is loaded once in a process
    _metering = _Metering()
    return _metering


@contextmanager
def providers(*, tracer: TracerProvider | None = None, meter: MeterProvider | None = None) -> Iterator[None]:
    """Use these providers instead of the global ones, which a process can set only once; for tests and embedding."""
    global _tracer_provider, _meter_provider
    before = _tracer_provider, _meter_provider
    _tracer_provider, _meter_provider = tracer, meter
    try:
        yield
    finally:
        _tracer_provider, _meter_provider = before


def tracer() -> Tracer:
    """Return the tracer that starts spans."""
    from opentelemetry import trace  # noqa: PLC0415 - see the module's docstring

    global _tracer  # noqa: PLW0603 - a cache per provider
    provider = _tracer_provider or trace.get_tracer_provider()
    if _tracer is None or _tracer[0] is not provider:
        _tracer = provider, trace.get_tracer(NAME, tracer_provider=provider)
    return _tracer[1]


def current_span() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, in hexadecimal, or None when there is none."""
    if _tracing is None and "opentelemetry.trace" not in sys.modules:
        return None
    context = (_tracing or _load_tracing()).api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def meter_provider() -> MeterProvider:
    """Return the provider that makes meters."""
    from opentelemetry import metrics  # noqa: PLC0415 - see the module's docstring

    return _meter_provider or metrics.get_meter_provider()
