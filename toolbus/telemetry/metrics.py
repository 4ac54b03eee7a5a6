"""Metrics: their names, and the functions that record them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast

from toolbus.results import ErrorInfo
from toolbus.telemetry.events import NAME
from toolbus.telemetry.listening import meter_provider, metering

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

# Every metric: its kind, unit and description.
METRICS: Mapping[str, tuple[Literal["counter", "histogram"], str, str]] = {
    "gen_ai.execute_tool.duration": ("histogram", "s", "Duration of a tool call as its caller sees it"),
    "messaging.process.duration": ("histogram", "s", "Duration of one run of a handler"),
    "toolbus.queue.duration": ("histogram", "s", "Time a request waited for a worker"),
    "toolbus.calls": ("counter", "{call}", "Calls that ended, by outcome"),
    "toolbus.attempts": ("counter", "{attempt}", "Starts of handlers, repeated ones among them"),
    "toolbus.frames": ("counter", "{frame}", "Response frames written by workers"),
    "toolbus.resets": ("counter", "{reset}", "Streams whose new attempt diverged from what was delivered"),
    "toolbus.reclaimed": ("counter", "{request}", "Requests taken over from workers that died"),
    "toolbus.dead_letters": ("counter", "{request}", "Requests that were set aside"),
    "toolbus.task_failures": ("counter", "{failure}", "Failures of background tasks"),
    "toolbus.reconnects": ("counter", "{connection}", "Connections restored after a loss"),
}

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)

OTHER = "_OTHER"
"""Stands for the tools that are not known, and for those beyond the first thousand."""

_MOST_NAMES = 1_000
_names: set[str] = set()
_instruments: tuple[MeterProvider, dict[str, Counter | Histogram]] | None = None


def count(name: str, amount: int = 1, **attributes: str) -> None:
    """Add to a counter of ``METRICS``; ``__`` in attribute names stands for a dot. Do nothing without a meter provider."""
    if metering():
        _counter(name).add(amount, {key.replace("__", "."): value for key, value in attributes.items()})


def record_call(tool: str, service: str, seconds: float, error: ErrorInfo | None) -> None:
    """Record the end of a call, at the caller's side; ``service`` is empty when no service was found for it."""
    if not metering():
        return
    outcome = _outcome(error)
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": _label(tool or service, known=bool(service))}
    _histogram("gen_ai.execute_tool.duration").record(seconds, about | outcome)
    _counter("toolbus.calls").add(1, {"messaging.destination.name": service} | outcome)


def record_run(service: str, seconds: float, queued: float, frames: int, error: ErrorInfo | None) -> None:
    """Record the end of a handler, at the worker's side; ``queued`` is how many seconds its request had waited."""
    if not metering():
        return
    outcome = _outcome(error)
    about = {"messaging.destination.name": service}
    process = {"messaging.system": "redis", "messaging.operation.name": "process"}
    _histogram("messaging.process.duration").record(seconds, process | about | outcome)
    _histogram("toolbus.queue.duration").record(queued, about)
    _counter("toolbus.attempts").add(1, about)
    _counter("toolbus.frames").add(frames, about)


def _label(name: str, *, known: bool) -> str:
    """Return the name of a tool that was found once, else one name for all others, since any caller may make up names without end."""
    if name not in _names:
        if not known or len(_names) >= _MOST_NAMES:
            return OTHER
        _names.add(name)
    return name


def _outcome(error: ErrorInfo | None) -> dict[str, str]:
    return {} if error is None else {"error.type": error.type}


def _counter(name: str) -> Counter:
    if METRICS[name][0] != "counter":
        raise TypeError(f"{name} is not a counter")
    return cast("Counter", _instrument(name))


def _histogram(name: str) -> Histogram:
    if METRICS[name][0] != "histogram":
        raise TypeError(f"{name} is not a histogram")
    return cast("Histogram", _instrument(name))


def _instrument(name: str) -> Counter | Histogram:
    global _instruments  # noqa: PLW0603 - a cache per provider
    provider = meter_provider()
    if _instruments is None or _instruments[0] is not provider:
        meter = provider.get_meter(NAME)
        _instruments = provider, {each: _made(meter, each) for each in METRICS}
    return _instruments[1][name]


def _made(meter: Meter, name: str) -> Counter | Histogram:
    kind, unit, description = METRICS[name]
    if kind == "counter":
        return meter.create_counter(name, unit, description)
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=_BUCKETS)
