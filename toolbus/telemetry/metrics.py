"""Metrics: their names, and the functions that record them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from toolbus.results import ErrorInfo
from toolbus.telemetry.events import NAME
from toolbus.telemetry.listening import meter_provider, metering

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation

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
_lock = threading.Lock()
_instruments: Instruments | None = None

_Attributes = tuple[tuple[str, str], ...]


class Instruments:
    """The instruments of one provider.

    Counters are kept here and told when metrics are collected: a number in a dictionary takes a tenth of the time of the SDK's.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.provider = provider
        self._counts: dict[str, dict[_Attributes, int]] = {}
        self._histograms: dict[str, Histogram] = {}
        meter = provider.get_meter(NAME)
        for name, (kind, unit, description) in METRICS.items():
            if kind == "counter":
                self._counts[name] = {}
                meter.create_observable_counter(name, [functools.partial(self._observe, name)], unit, description)
            else:
                histogram = meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=_BUCKETS)
                self._histograms[name] = histogram

    def add(self, name: str, amount: int, attributes: _Attributes) -> None:
        """Add to a counter.

        Raises:
            TypeError: the metric is no counter.
            KeyError: there is no such metric.
        """
        if name in self._histograms:
            raise TypeError(f"{name} is not a counter")
        counts = self._counts[name]
        with _lock:
            counts[attributes] = counts.get(attributes, 0) + amount

    def record(self, name: str, value: float, attributes: dict[str, str]) -> None:
        """Record a value in a histogram."""
        self._histograms[name].record(value, attributes)

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - only an SDK calls this

        with _lock:
            counts = list(self._counts[name].items())
        return [Observation(amount, dict(attributes)) for attributes, amount in counts]


def count(name: str, amount: int = 1, **attributes: str) -> None:
    """Add to a counter of ``METRICS``; ``__`` in attribute names stands for a dot. Do nothing without a meter provider."""
    if metering():
        _all().add(name, amount, tuple([(key.replace("__", "."), value) for key, value in attributes.items()]))


def record_call(tool: str, service: str, seconds: float, error: ErrorInfo | None) -> None:
    """Record the end of a call, at the caller's side; ``service`` is empty when no service was found for it."""
    if not metering():
        return
    instruments, outcome = _all(), _outcome(error)
    name = _label(tool or service, known=bool(service))
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **dict(outcome)}
    instruments.record("gen_ai.execute_tool.duration", seconds, about)
    instruments.add("toolbus.calls", 1, (("messaging.destination.name", service), *outcome))


def record_run(service: str, seconds: float, queued: float, frames: int, error: str) -> None:
    """Record the end of a run, at the worker's side.

    Args:
        service: of the tool.
        seconds: how long it ran.
        queued: seconds that its request had waited.
        frames: how many it sent.
        error: the type of its error, ``handed_back`` or ``lost`` when another worker goes on with it; empty for a success.
    """
    if not metering():
        return
    instruments, about = _all(), {"messaging.destination.name": service}
    process = {"messaging.system": "redis", "messaging.operation.name": "process", **about, **({"error.type": error} if error else {})}
    instruments.record("messaging.process.duration", seconds, process)
    instruments.record("toolbus.queue.duration", queued, about)
    counted = (("messaging.destination.name", service),)
    instruments.add("toolbus.attempts", 1, counted)
    instruments.add("toolbus.frames", frames, counted)


def _label(name: str, *, known: bool) -> str:
    """Return the name of a tool that was found once, else one name for all others, since any caller may make up names without end."""
    if name not in _names:
        if not known or len(_names) >= _MOST_NAMES:
            return OTHER
        _names.add(name)
    return name


def _outcome(error: ErrorInfo | None) -> _Attributes:
    return () if error is None else (("error.type", error.type),)


def _all() -> Instruments:
    global _instruments  # noqa: PLW0603 - a cache per provider
    provider = meter_provider()
    if _instruments is None or _instruments.provider is not provider:
        _instruments = Instruments(provider)
    return _instruments
