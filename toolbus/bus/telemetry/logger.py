"""``log``: pass events to the application's logging, or straight to the line handler of our own programs."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolbus.bus.support.safe_text import is_printable, traceback_of
from toolbus.bus.telemetry.events import EVENTS, NAME
from toolbus.bus.telemetry.output import FIELDS, ExcInfo, LineHandler, word

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

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


ABOUT: Mapping[str, tuple[str, ...]] = {
    "confirmation.unreadable": ("id", "error"),
    "descriptor.invalid": ("key", "error"),
    "descriptor.mended": ("service", "tools", "changes"),
    "registry.unreadable": ("service", "error"),
    "server.no_permission": ("server", "error"),
    "tool.name_taken": ("tool", "service", "holder"),
    "value.unreadable": ("key", "error"),
}
"""Events that are logged once for each combination of these fields, since each further reading would repeat them."""

_EACH = frozenset(
    {
        # A line for each call, request, session or answer, which somebody may look for.
        "call.abandoned", "call.alone", "call.cancelled", "call.crashed", "call.failed", "call.finished", "call.handed_back",
        "cancel.done", "confirmation.asked", "confirmation.settled", "execution.crashed", "execution.failed", "execution.finished",
        "execution.started", "request.buried",
        "session.ended", "session.handed_over", "session.lost", "session.restored", "session.unopened", "session.unrestored",
        # A line for each step in the life of a process, and for each part of its own program.
        "nanoclaw.left_out", "project.unreadable", "service.registered", "service.withdrawn", "supervisor.killing", "supervisor.reloading",
        "supervisor.restarting", "task.given_up", "tool.left_out", "tool.return_ignored", "tool.unresolved_annotation", "tools.refused",
        "tools.undeclared_effect", "worker.close_incomplete",
        "worker.draining", "worker.failed", "worker.grace_ended", "worker.hand_back_failed", "worker.handed_back", "worker.killed",
        "worker.serving", "worker.stopped", "worker.stuck", "worker.unregister_failed",
    }
)  # fmt: skip

BOUNDED = frozenset(EVENTS) - _EACH
"""Events of which at most ``MOST_LINES`` or ``FEWER`` are logged per minute; ``more`` in the next line is the number left out."""

MOST_LINES = 30
FEWER: Mapping[str, int] = {"telemetry.export_failed": 3}
_PERIOD = 60.0
_MOST_REMEMBERED = 8_192


class Repeats:
    """Decides whether an event is logged.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: OrderedDict[tuple[str, ...], None] = OrderedDict()
        # For each event: when its minute began, its lines since then, and how many were left out.
        self._minutes: dict[str, tuple[float, int, int]] = {}

    def left_out(self, name: str, fields: Mapping[str, object]) -> int | None:
        """Return how many lines were left out before this one, or None when this one must be left out, too."""
        if name not in BOUNDED:
            return 0
        about = (name, *(str(fields.get(field)) for field in ABOUT[name])) if name in ABOUT else None
        if about is not None and about in self._told:
            self._told.move_to_end(about)
            return None
        began, lines, missed = self._minutes.get(name, (self._clock(), 0, 0))
        if self._clock() - began > _PERIOD:
            began, lines = self._clock(), 0
        if lines >= FEWER.get(name, MOST_LINES):
            self._minutes[name] = (began, lines, missed + 1)
            return None
        self._minutes[name] = (began, lines + 1, 0)
        if about is not None:
            self._told[about] = None
            if len(self._told) > _MOST_REMEMBERED:
                self._told.popitem(last=False)
        return missed

    def forget(self) -> None:
        """Forget what was logged, so that everything is logged again."""
        self._told.clear()
        self._minutes.clear()


repeats = Repeats()
"""The events that this process has logged."""


logger = logging.getLogger(NAME)
"""The logger of all events; its handlers are the application's choice."""

logger.addHandler(logging.NullHandler())

logs = logger.isEnabledFor
"""Return whether a level (``logging.DEBUG``, …) is logged; cheap enough for the hot path."""

# Three frames lie between the code that logged the event and the LogRecord: this function, the method of EventLog, Logger.log.
_STACK_LEVEL = 3


class EventLog:
    """Logs events: ``log.info("call.finished", tool=…, id=…, ms=…)``. Field values may be of any type."""

    __slots__ = ()

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log an event for developers only."""
        if logs(logging.DEBUG):
            _emit(logging.DEBUG, event, fields, None)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log an event of normal operation."""
        if logs(logging.INFO):
            _emit(logging.INFO, event, fields, None)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log an event that an operator may have to look into."""
        if logs(logging.WARNING):
            _emit(logging.WARNING, event, fields, None)

    def error(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log a failure, with the traceback of ``exc_info``."""
        if logs(logging.ERROR):
            _emit(logging.ERROR, event, fields, None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__))

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log a failure, with the traceback of the exception that is being handled."""
        if logs(logging.ERROR):
            error = sys.exception()
            _emit(logging.ERROR, event, fields, None if error is None else (type(error), error, error.__traceback__))


log = EventLog()


def _emit(level: int, event: str, fields: dict[str, Any], raised: ExcInfo | None) -> None:
    more = repeats.left_out(event, fields) if event in BOUNDED else 0
    if more is None:
        return
    if more:
        fields["more"] = more
    span = current_span()
    if span is not None:
        fields["trace_id"], fields["span_id"] = span
    handlers = logger.handlers
    if len(handlers) == 1 and not logger.propagate and not logger.filters:
        handler = handlers[0]
        if type(handler) is LineHandler and level >= handler.level and not handler.filters:
            handler.write_event(level, event, fields, raised)
            return
    if raised is not None and not is_printable(raised[1]):
        # Handlers of others print it, and what its class raises then would come out here.
        fields["exception"], raised = traceback_of(raised[1]), None
    line = " ".join([event, *(f"{name}={word(value)}" for name, value in fields.items())])
    logger.log(level, line, exc_info=raised, extra={FIELDS: {"event": event, **fields}}, stacklevel=_STACK_LEVEL)
