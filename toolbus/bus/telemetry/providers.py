"""Tell whether events are logged and spans and metrics exported, and through what: the application decides."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolbus.bus.telemetry.events import NAME

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

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


class _Api:
    """One of OpenTelemetry's APIs, and whether a provider of it exports anything.

    Args:
        module: its name; its own providers, which export nothing, are defined there.
        kind: of the provider: ``tracer`` or ``meter``.
        holder: the module that holds the global provider.

    Attributes:
        provider: the one that ``providers`` set.
    """

    def __init__(self, module: str, kind: str, holder: str) -> None:
        self._module, self._kind, self._holder = module, kind, holder
        self._variable = f"_{kind.upper()}_PROVIDER"
        self._is_named = f"OTEL_PYTHON_{kind.upper()}_PROVIDER" in os.environ
        self._source: Any = None
        self._get: Any = None
        # The last one that exports something.
        self._found: Any = None
        self.provider: Any = None

    def exporting(self) -> Any:
        """Return the provider of an SDK that is configured, or None."""
        if self._get is None:
            if not self._is_named and self._module not in sys.modules:
                return None
            self.load()
        provider = self.provider
        if provider is None:
            # Until an SDK is loaded, the function reads the environment each time (0.9 µs) for one variable that makes it load an SDK.
            # When that variable is not set, reading the global that it returns is enough.
            provider = self._get() if self._source is None else getattr(self._source, self._variable)
        if provider is not self._found:
            if type(provider).__module__.startswith(self._module):
                return None
            self._found = provider
        return provider

    def load(self) -> Any:
        """Load the API, and return its module."""
        api = importlib.import_module(self._module)
        holder = importlib.import_module(self._holder)
        if not self._is_named and hasattr(holder, self._variable):
            self._source = holder
        self._get = getattr(api, f"get_{self._kind}_provider")
        return api


_tracing = _Api("opentelemetry.trace", "tracer", "opentelemetry.trace")
_metering = _Api("opentelemetry.metrics", "meter", "opentelemetry.metrics._internal")
active: Callable[[], TracerProvider | None] = _tracing.exporting
"""Return the provider by which spans are exported, or None."""
metering: Callable[[], MeterProvider | None] = _metering.exporting
"""Return the provider by which metrics are exported, or None."""


@contextmanager
def providers(*, tracer: TracerProvider | None = None, meter: MeterProvider | None = None) -> Iterator[None]:
    """Use these providers instead of the global ones, which a process can set only once; for tests and embedding."""
    before = _tracing.provider, _metering.provider
    _tracing.provider, _metering.provider = tracer, meter
    try:
        yield
    finally:
        _tracing.provider, _metering.provider = before


def current_span() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, in hexadecimal, or None when there is none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None
