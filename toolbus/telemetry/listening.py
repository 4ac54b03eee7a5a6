"""Find out whether an OpenTelemetry SDK receives spans and metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

from toolbus.telemetry.events import NAME

_tracer_provider: TracerProvider | None = None
_meter_provider: MeterProvider | None = None
_tracer: tuple[TracerProvider, trace.Tracer] | None = None

# Until an SDK is loaded, `get_tracer_provider()` reads the environment each time (0.9 µs) for one variable that makes it
# load an SDK. When that variable is not set, reading the global that it returns is enough.
_TRACER_GLOBAL = hasattr(trace, "_TRACER_PROVIDER") and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ
_meters: Any = getattr(metrics, "_internal", None)
# The API's own proxy has no public name. It and the no-op provider share a module; real providers come from elsewhere.
_NO_METERS = NoOpMeterProvider.__module__
_METER_GLOBAL = hasattr(_meters, "_METER_PROVIDER") and "OTEL_PYTHON_METER_PROVIDER" not in os.environ


def active() -> bool:
    """Return whether spans are exported: an SDK's tracer provider is configured."""
    provider = _tracer_provider
    if provider is None:
        provider = trace._TRACER_PROVIDER if _TRACER_GLOBAL else trace.get_tracer_provider()
    return provider is not None and not isinstance(provider, (trace.ProxyTracerProvider, NoOpTracerProvider))


def metering() -> bool:
    """Return whether metrics are exported: an SDK's meter provider is configured."""
    provider = _meter_provider
    if provider is None:
        provider = _meters._METER_PROVIDER if _METER_GLOBAL else metrics.get_meter_provider()
    return provider is not None and type(provider).__module__ != _NO_METERS


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


def tracer() -> trace.Tracer:
    """Return the tracer that starts spans."""
    global _tracer  # noqa: PLW0603 - a cache per provider
    provider = _tracer_provider or trace.get_tracer_provider()
    if _tracer is None or _tracer[0] is not provider:
        _tracer = provider, trace.get_tracer(NAME, tracer_provider=provider)
    return _tracer[1]


def meter_provider() -> MeterProvider:
    """Return the provider that makes meters."""
    return _meter_provider or metrics.get_meter_provider()
