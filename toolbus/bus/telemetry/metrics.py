"""Metrics: their names, and the functions that record them."""

from __future__ import annotations

import functools
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from toolbus.bus.telemetry.contained import contained, report_failure
from toolbus.bus.telemetry.events import NAME
from toolbus.bus.telemetry.providers import metering
from toolbus.bus.values.results import ErrorInfo

if TYPE_CHECKING:
    from opentelemetry.context import Context
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
"""Stands for the tools that are not known, and for those that have no metrics of their own."""

_MOST_NAMES = 1_000
_names: set[str] = set()
_lock = threading.Lock()
_instruments: Instruments | None = None

_Attributes = tuple[tuple[str, str], ...]
_Call = tuple[str, str, str, float, int]
"""A call that ended: its tool, its service, the type of its error, its seconds, and when (ns since the epoch)."""
_Run = tuple[str, str, float, float, int, int]
"""A run that ended: its service, the type of its error, its seconds and those it had waited, its frames, and when."""

_BATCH = 128
"""So many are reported to the provider at once, in a quarter of a millisecond."""


class Instruments:
    """The instruments of one provider.

    Their values are reported to the provider in batches, and those left when it collects; counters are kept here and read then.

    Attributes:
        calls: those that ended and are not reported yet.
        runs: likewise.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.provider = provider
        self.calls: deque[_Call] = deque()
        self.runs: deque[_Run] = deque()
        self._reporting = threading.Lock()
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

    @contained("metrics")
    def report(self) -> None:
        """Report what was noted to the provider; return when it has all that was noted before."""
        with self._reporting:
            # Both are taken out first: what can't be reported is lost, and does not grow.
            calls = [self.calls.popleft() for _ in range(len(self.calls))]
            runs = [self.runs.popleft() for _ in range(len(self.runs))]
            self._report_calls(calls)
            self._report_runs(runs)

    def _report_calls(self, calls: list[_Call]) -> None:
        alike: dict[tuple[str, str, str], list[_Value]] = {}
        for tool, service, error, seconds, when in calls:
            alike.setdefault((tool, service, error), []).append((seconds, when))
        for (tool, service, error), values in alike.items():
            name = _label(tool or service, known=bool(service))
            about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
            counted = {"messaging.destination.name": service}
            if error:
                about["error.type"] = counted["error.type"] = error
            self.record("gen_ai.execute_tool.duration", values, about)
            self.add("toolbus.calls", len(values), tuple(counted.items()))

    def _report_runs(self, runs: list[_Run]) -> None:
        alike: dict[tuple[str, str], list[_Run]] = {}
        for run in runs:
            alike.setdefault(run[:2], []).append(run)
        for (service, error), group in alike.items():
            about = {"messaging.destination.name": service}
            process = {"messaging.system": "redis", "messaging.operation.name": "process", **about}
            if error:
                process["error.type"] = error
            self.record("messaging.process.duration", [(run[2], run[5]) for run in group], process)
            self.record("toolbus.queue.duration", [(run[3], run[5]) for run in group], about)
            counted = tuple(about.items())
            self.add("toolbus.attempts", len(group), counted)
            self.add("toolbus.frames", sum(run[4] for run in group), counted)

    def record(self, name: str, values: Sequence[_Value], attributes: dict[str, str]) -> None:
        """Record values in a histogram that have the same attributes."""
        _record_all(self._histograms[name], values, attributes)

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - only an SDK calls this

        self.report()
        with _lock:
            counts = list(self._counts[name].items())
        return [Observation(amount, dict(attributes)) for attributes, amount in counts]


_Value = tuple[float, int]
"""A value, and when it was measured (ns since the epoch)."""


class _Measurement(NamedTuple):
    """A measurement, as the SDK's aggregations read it; its own class checks the attributes each time."""

    value: float
    time_unix_nano: int
    instrument: Histogram
    context: Context
    attributes: dict[str, str]


def _record_all(histogram: Any, values: Sequence[_Value], attributes: dict[str, str]) -> None:
    """Record values that have the same attributes.

    The SDK has no function for it, and its ``record()`` spends nine tenths of its time on what is the same for all of them: finding the
    aggregations that its views make of these attributes. Another SDK, or one whose internals differ, gets one value after the other.
    """
    from opentelemetry.context import Context  # noqa: PLC0415 - loaded with the SDK

    try:
        from opentelemetry.sdk.metrics import TraceBasedExemplarFilter  # noqa: PLC0415 - see above
        from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes  # noqa: PLC0415 - see above
        from opentelemetry.sdk.metrics._internal.aggregation import _ExplicitBucketHistogramAggregation  # noqa: PLC0415 - see above

        if not histogram._is_enabled():
            return
        consumer = histogram._measurement_consumer
        chooses = consumer._sdk_config.exemplar_filter
        found = []
        for storage in consumer._reader_storages.values():
            for match in storage._get_or_init_view_instrument_match(histogram):
                keys = match._view._attribute_keys
                kept = attributes if keys is None else {key: value for key, value in attributes.items() if key in keys}
                found.append((match._lock, match._get_or_create_aggregation, _hash_attributes(kept), kept))
    except (ImportError, AttributeError, TypeError):
        for value, _ in values:
            histogram.record(value, attributes)
        return
    # No span is current: that of the call has ended, and any other is not the call's. Then this filter, the usual one, takes nothing.
    nothing, may_be_exemplars = Context(), not isinstance(chooses, TraceBasedExemplarFilter)
    for lock, aggregation_of, key, kept in found:
        # A collection that resets them must not come in between.
        with lock:
            aggregation = aggregation_of(key, kept)
            if not may_be_exemplars and type(aggregation) is _ExplicitBucketHistogramAggregation and _count_all(aggregation, values):
                continue
            for value, when in values:
                measured = _Measurement(value, when, histogram, nothing, attributes)
                aggregation.aggregate(measured, may_be_exemplars and chooses.should_sample(value, when, attributes, nothing))


def _count_all(aggregation: Any, values: Sequence[_Value]) -> bool:
    """Count values in the buckets of an aggregation; return False when its insides are others than are known here."""
    with aggregation._lock:
        try:
            counts, bounds = aggregation._value or aggregation._get_empty_bucket_counts(), aggregation._boundaries
            total, least, most = aggregation._sum, aggregation._min, aggregation._max
            extremes = aggregation._record_min_max
        except (AttributeError, TypeError):
            return False
        numbers = [value for value, _ in values]
        for value in numbers:
            counts[bisect_left(bounds, value)] += 1
        aggregation._value, aggregation._sum = counts, total + sum(numbers)
        if extremes:
            aggregation._min, aggregation._max = min(least, *numbers), max(most, *numbers)
    return True


def count(name: str, amount: int = 1, **attributes: str) -> None:
    """Add to a counter of ``METRICS``; ``__`` in attribute names stands for a dot. Do nothing without a meter provider."""
    provider = metering()
    if provider is not None and (found := _all(provider)) is not None:
        found.add(name, amount, tuple([(key.replace("__", "."), value) for key, value in attributes.items()]))


def record_call(tool: str, service: str, seconds: float, error: ErrorInfo | None) -> None:
    """Record the end of a call, at the caller's side; ``service`` is empty when no service was found for it."""
    provider = metering()
    if provider is not None and (found := _all(provider)) is not None:
        found.calls.append((tool, service, "" if error is None else error.type, seconds, time.time_ns()))
        if len(found.calls) >= _BATCH:
            found.report()


def record_run(service: str, seconds: float, queued: float, frames: int, error: str) -> None:
    """Record the end of a run, at the worker's side.

    Args:
        service: of the tool.
        seconds: how long it ran.
        queued: seconds that its request had waited.
        frames: how many it sent.
        error: the type of its error, ``handed_back`` or ``lost`` when another worker goes on with it; empty for a success.
    """
    provider = metering()
    if provider is not None and (found := _all(provider)) is not None:
        found.runs.append((service, error, seconds, queued, frames, time.time_ns()))
        if len(found.runs) >= _BATCH:
            found.report()


def _label(name: str, *, known: bool) -> str:
    """Return the name of a tool that was found once, else one name for all others, since any caller may make up names without end."""
    if name not in _names:
        if not known or len(_names) >= _MOST_NAMES:
            return OTHER
        _names.add(name)
    return name


def _all(provider: MeterProvider) -> Instruments | None:
    global _instruments  # noqa: PLW0603 - a cache per provider
    if _instruments is None or _instruments.provider is not provider:
        try:
            _instruments = Instruments(provider)
        except Exception:  # noqa: BLE001 - it is the application's code
            report_failure("metrics")
            return None
    return _instruments


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the text."""

# Every metric of /metrics: its kind and description.
EXPOSED: Mapping[str, tuple[Literal["counter", "gauge", "histogram"], str]] = {
    # Of a gateway, a worker and an exporter.
    "toolbus_up": ("gauge", "Whether it can do its work: a gateway's calls are accepted, a worker takes requests"),
    "toolbus_log_lines_lost_total": ("counter", "Lines of the log that were dropped, or could not be written"),
    # Of a gateway.
    "toolbus_calls_total": ("counter", "Calls that ended, by outcome"),
    "gen_ai_execute_tool_duration_seconds": ("histogram", "Duration of a tool call as its caller sees it"),
    "toolbus_gateway_in_flight": ("gauge", "Calls that came over HTTP and have not ended"),
    "toolbus_gateway_streams": ("gauge", "Those of them whose events are streamed"),
    "toolbus_gateway_tools": ("gauge", "Tools that can be called"),
    # Of a gateway, and of an exporter.
    "toolbus_fault": ("gauge", "How often a check of `toolbus doctor` finds something, with its state and its runbook"),
    "toolbus_server_cut_off_total": ("counter", "Connections that the server has ended because they read too slowly"),
    "toolbus_queue_length": ("gauge", "Requests that are queued or running, by state"),
    "toolbus_workers": ("gauge", "Live workers of a service"),
    "toolbus_dead_letters": ("gauge", "Requests that are set aside"),
    "toolbus_service_paused": ("gauge", "Whether a service takes no requests"),
    "toolbus_service_down": ("gauge", "Whether a service has no worker, and was not withdrawn; for a day after its last worker"),
    # Of a worker, summed over its processes.
    "toolbus_worker_info": ("gauge", "1; the labels tell the versions"),
    "toolbus_worker_processes": ("gauge", "Processes that should run"),
    "toolbus_worker_processes_ready": ("gauge", "Processes that take requests now"),
    "toolbus_worker_processes_leaving": ("gauge", "Processes that take no more requests and finish what they run"),
    "toolbus_worker_processes_least": ("gauge", "Fewest processes, where the load decides"),
    "toolbus_worker_processes_most": ("gauge", "Most processes, where the load decides"),
    "toolbus_worker_processes_used": ("gauge", "Processes in use, as the sum of their shares"),
    "toolbus_worker_processes_added_total": ("counter", "Processes that the load has added"),
    "toolbus_worker_processes_dismissed_total": ("counter", "Processes that the load has let go"),
    "toolbus_worker_restarts_total": ("counter", "Processes that were started again"),
    "toolbus_worker_slots": ("gauge", "Calls that may run at once"),
    "toolbus_worker_running": ("gauge", "Calls that run"),
    "toolbus_worker_waiting": ("gauge", "Calls that a worker holds and that wait for a retry or their turn"),
    "toolbus_worker_sessions": ("gauge", "Open sessions of a service"),
    "toolbus_worker_attempts_total": ("counter", "Attempts that began, by tool"),
    "toolbus_worker_failures_total": ("counter", "Attempts that ended with an error, by tool and type of error"),
    "toolbus_worker_cancelled_total": ("counter", "Attempts that were cancelled, by tool"),
    "toolbus_worker_refused_total": ("counter", "Requests that were answered without being run, by tool and type of error"),
    "toolbus_worker_duration_seconds": ("histogram", "Duration of attempts that ended, without the cancelled ones"),
    "toolbus_worker_recovered_total": ("counter", "Calls that were taken over from dead workers"),
    "toolbus_worker_lost_total": ("counter", "Calls that were given to others while they ran here"),
    "toolbus_worker_malformed_total": ("counter", "Requests that could not be read"),
    "toolbus_worker_frames_total": ("counter", "Response frames that were sent"),
    "toolbus_worker_commands_total": ("counter", "Commands that were sent to the server"),
    "toolbus_worker_connects_total": ("counter", "Connections made to the server"),
    "process_cpu_seconds_total": ("counter", "Processor time of the processes"),
    "process_resident_memory_bytes": ("gauge", "Resident memory of the processes"),
}


class Exposition:
    """Collects samples, and writes them as text, each metric once with its description.

    Args:
        namespace: a label of every sample, by which one Prometheus tells several installations apart.
    """

    def __init__(self, namespace: str = "") -> None:
        self._lines: dict[str, list[str]] = {}
        self._common = {"toolbus_namespace": namespace}

    def declare(self, name: str) -> None:
        """Describe a metric even if it has no sample.

        Raises:
            KeyError: it is not in the table.
        """
        if name not in self._lines:
            kind, about = EXPOSED[name]
            self._lines[name] = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def add(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add a sample of a counter or gauge; labels with empty values are left out."""
        self.declare(name)
        self._lines[name].append(_sample(name, {**self._common, **(labels or {})}, value))

    def add_histogram(self, name: str, bounds: Iterable[object], counts: Sequence[int], total: float, labels: Mapping[str, str]) -> None:
        """Add a histogram.

        Args:
            name: its name.
            bounds: upper bounds of the buckets, without the infinite one.
            counts: what is in each bucket; not cumulative, and zeros at the end may lack.
            total: the sum of all values.
            labels: of every sample of it.
        """
        self.declare(name)
        labels = {**self._common, **labels}
        lines, cumulative = self._lines[name], 0
        for at, bound in enumerate((*bounds, "+Inf")):
            cumulative += counts[at] if at < len(counts) else 0
            lines.append(_sample(f"{name}_bucket", {**labels, "le": str(bound)}, cumulative))
        lines.append(_sample(f"{name}_sum", labels, round(total, 6)))
        lines.append(_sample(f"{name}_count", labels, cumulative))

    def text(self) -> str:
        """Return what was added."""
        return "\n".join(line for lines in self._lines.values() for line in lines) + "\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if text)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
