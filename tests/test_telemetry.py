"""Log lines, spans and metrics, and that they cost nothing when nobody listens."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach, get_current, get_value, set_value
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, ExemplarFilter, Histogram, MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    SumAggregation,
    View,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

import toolbus
from toolbus.bus import telemetry
from toolbus.bus.telemetry.events import NAME
from toolbus.bus.telemetry.logger import BOUNDED, MOST_LINES, Repeats
from toolbus.bus.telemetry.metrics import _BATCH, _BUCKETS
from toolbus.bus.values.results import CallCancelled, ErrorInfo, ToolError

CALL = {"tool": "add", "service": "calculator", "id": "c1"}


def handler_span(traceparent: str, *, attempt: int = 1) -> telemetry.HandlerSpan:
    """Return the span of a run, where spans are exported."""
    span = telemetry.handler_span(traceparent, **CALL, attempt=attempt, worker="w1")
    assert span is not None
    return span


class OwnProcessor(SpanProcessor):
    """Some application's own, which might change spans when they start."""


@pytest.fixture(params=["usual", "own processor"])
def spans(request: pytest.FixtureRequest) -> Iterator[InMemorySpanExporter]:
    """Provide the spans of a set-up in which they are made without the SDK's tracer, and of one in which it makes them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if request.param != "usual":
        provider.add_span_processor(OwnProcessor())
    with telemetry.providers(tracer=provider):
        yield exporter
    provider.shutdown()


def tracer() -> trace.Tracer:
    """Return that of the library."""
    return trace.get_tracer(NAME, tracer_provider=telemetry.active())


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=provider):
        yield reader
    provider.shutdown()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Provide the library's logger, and restore it afterwards."""
    logger = logging.getLogger("toolbus")
    before = logger.level, logger.propagate, logger.handlers[:]
    yield logger
    logger.level, logger.propagate = before[0], before[1]
    logger.handlers[:] = before[2]
    logger.setLevel(before[0])


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for each in data.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    }


# --- Logs ---


def test_plain_logging_sees_event_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """An application with plain logging gets one readable line, with the place that logged it and the fields beside it."""
    with caplog.at_level(logging.INFO, logger="toolbus"):
        telemetry.log.info("link.restored", server="here", tries=3, name="a b", args="=", note="")
    (record,) = caplog.records
    assert record.getMessage() == 'link.restored server=here tries=3 name="a b" args="=" note=""'
    assert record.toolbus == {"event": "link.restored", "server": "here", "tries": 3, "name": "a b", "args": "=", "note": ""}
    assert (record.filename, record.funcName) == ("test_telemetry.py", "test_plain_logging_sees_event_and_fields")


def test_exceptions_are_logged_with_traceback_and_place(caplog: pytest.LogCaptureFixture) -> None:
    """log.exception() carries the exception and the place that logged it."""
    try:
        raise ValueError("broken")
    except ValueError:
        telemetry.log.exception("link.callback_failed")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "broken" in caplog.text
    assert record.funcName == "test_exceptions_are_logged_with_traceback_and_place"


@pytest.mark.parametrize("format", ["text", "json"])
def test_values_cannot_forge_lines(logger: logging.Logger, format: Any) -> None:
    """Line breaks, terminal sequences and percent signs in a value stay inside it."""
    stream = io.StringIO()
    telemetry.configure_logging(format=format, stream=stream)
    telemetry.log.warning("link.lost", error="one\ntwo \x1b[31m%s \ud800")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\\ntwo" in line


def test_disabled_levels_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Below the level nothing is written, and logs() says so beforehand."""
    with caplog.at_level(logging.WARNING, logger="toolbus"):
        assert not telemetry.logs(logging.INFO)
        assert telemetry.logs(logging.WARNING)
        telemetry.log.info("link.restored")
    assert caplog.records == []


def test_lines_carry_the_current_trace(caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter) -> None:
    """A line logged inside a handler's span names its trace and span, one outside names none."""
    with caplog.at_level(logging.INFO, logger="toolbus"):
        with handler_span(""):
            telemetry.log.info("link.restored")
        telemetry.log.info("link.restored")
    context = spans.get_finished_spans()[0].context
    inside, outside = caplog.records
    assert inside.toolbus["trace_id"] == trace.format_trace_id(context.trace_id)
    assert inside.toolbus["span_id"] == trace.format_span_id(context.span_id)
    assert "trace_id" not in outside.toolbus


def test_json_lines(logger: logging.Logger) -> None:
    """Each JSON line has time, level, event and the fields; exceptions are text and unknown values are told."""
    stream = io.StringIO()
    telemetry.configure_logging("debug", "json", stream)
    telemetry.log.debug("link.lost", server=Path("a"), level="mine")
    try:
        raise ValueError("broken")
    except ValueError:
        telemetry.log.exception("link.callback_failed")
    logging.getLogger("toolbus.other").warning("plain %d", 1)
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "debug", "event": "link.lost", "server": "a"}
    assert second["exception"].endswith("ValueError: broken")
    assert (third["event"], third["logger"]) == ("plain 1", "toolbus.other")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_has_colours_on_a_terminal_only(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` is coloured text on a terminal, plain with NO_COLOR, and JSON elsewhere; the newest configuration counts."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, plain, pipe = Terminal(), Terminal(), io.StringIO()
    telemetry.configure_logging(stream=terminal)
    telemetry.log.info("link.restored", server="here")
    monkeypatch.setenv("NO_COLOR", "1")
    telemetry.configure_logging(stream=plain)
    telemetry.log.info("link.restored", server="here")
    telemetry.configure_logging(stream=pipe)
    telemetry.log.info("link.restored", server="here")
    assert "\x1b[" in terminal.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} info     link\.restored server=here\n", plain.getvalue())
    assert json.loads(pipe.getvalue())["event"] == "link.restored"


def test_library_is_silent_until_configured() -> None:
    """Without any logging configuration nothing is printed, not even errors."""
    program = "from toolbus.bus import telemetry; telemetry.log.error('link.lost')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == ("", "")


def _choices(node: ast.expr) -> list[ast.expr]:
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _logged(*folder: str) -> set[str]:
    """Return the names of the events that the source of a folder logs."""
    used: set[str] = set()
    for path in Path(toolbus.__path__[0], *folder).rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text if "log." in text else "")):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and "log" in {getattr(node.func.value, "id", ""), getattr(node.func.value, "attr", "")}
                and ast.unparse(node.func.value) in {"log", "telemetry.log"}
            ):
                names = {each.value for each in _choices(node.args[0]) if isinstance(each, ast.Constant)}
                assert names, f"{path}:{node.lineno} logs a computed event name"
                used |= names
    return used


@pytest.mark.usefixtures("slow")
def test_every_logged_event_is_documented() -> None:
    """Each event name in the package's source stands in EVENTS, and each name there is used."""
    # The writer of lines says itself what it dropped.
    logged, known = _logged() | {"log.dropped"}, set(telemetry.EVENTS)
    assert logged - known == set(), "add these events to EVENTS"
    assert known - logged == set(), "nothing logs these events"


def test_every_metric_is_recorded() -> None:
    """Each metric of METRICS is counted or recorded somewhere, and no other one is."""
    written = "".join(path.read_text("utf-8") for path in Path(toolbus.__path__[0]).rglob("*.py"))
    recorded = set(re.findall(r"\b(?:count|add|record)\(\s*\"([\w.]+)\"", written))
    assert set(telemetry.METRICS) - recorded == set(), "nothing records these metrics"
    ours = {name for name in recorded if name.partition(".")[0] in {"gen_ai", "messaging", "toolbus"}}
    assert ours - set(telemetry.METRICS) == set(), "these are recorded, and stand not in METRICS"


def test_what_repeats_is_logged_once_or_counted() -> None:
    """A thing that can't be read is told once; of what fails again and again thirty lines a minute, and then how many were left out."""
    now = 0.0
    repeats = Repeats(lambda: now)
    junk = {"key": "k", "error": "e", "advice": "a"}
    assert repeats.left_out("value.unreadable", junk) == 0
    assert repeats.left_out("value.unreadable", junk) is None
    assert repeats.left_out("value.unreadable", {**junk, "key": "another"}) == 0
    lines = [repeats.left_out("upkeep.failed", {}) for _ in range(MOST_LINES + 10)]
    assert lines == [0] * MOST_LINES + [None] * 10
    assert repeats.left_out("call.finished", {}) == 0
    now = 61.0
    assert repeats.left_out("upkeep.failed", {}) == 10
    assert repeats.left_out("upkeep.failed", {}) == 0
    assert repeats.left_out("value.unreadable", junk) is None


def test_what_repeats_is_an_event() -> None:
    """The events whose repeats are left out are events."""
    assert set(telemetry.EVENTS) >= BOUNDED


# A line for each request, session, start or end.
ONCE_EACH = {
    "task.given_up",
    "call.abandoned",
    "cancel.done",
    "service.registered",
    "service.withdrawn",
    "session.handed_over",
    "worker.close_incomplete",
    "worker.unregister_failed",
}


def test_what_the_server_can_have_repeated_is_bounded() -> None:
    """Values on the server can have anything that the broker or the toolkit graph logs said again and again, but for single ends."""
    assert (_logged("bus", "broker") | _logged("toolkit")) - BOUNDED == ONCE_EACH
    assert "call.lost" in BOUNDED, "the worker says so for what the broker finds to be lost"


# --- Spans ---


def test_one_trace_from_agent_to_handler(spans: InMemorySpanExporter) -> None:
    """The call and its handler are one trace, each the child of the one before."""
    with trace.use_span(tracer().start_span("agent's own"), end_on_exit=True):
        call = telemetry.start_call_span(**CALL, agent="a1")
    assert call is not None
    with (
        handler_span(call.traceparent, attempt=2),
        tracer().start_as_current_span("handler's own"),
    ):
        pass
    call.end()
    found = named(spans)
    chain = ["agent's own", "execute_tool add", "process calculator", "handler's own"]
    for parent, child in itertools.pairwise(chain):
        assert found[child].parent is not None
        assert found[child].parent.span_id == found[parent].context.span_id
    assert len({span.context.trace_id for span in found.values()}) == 1
    assert all(span.status.status_code is StatusCode.UNSET for span in found.values())


def test_span_attributes_follow_the_conventions(spans: InMemorySpanExporter) -> None:
    """Spans have the kinds and attributes of OpenTelemetry's conventions for tools and messaging."""
    call = telemetry.start_call_span(**CALL, agent="a1")
    assert call is not None
    with handler_span(call.traceparent, attempt=2):
        pass
    call.end()
    found = named(spans)
    tool, process = found["execute_tool add"], found["process calculator"]
    assert (tool.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    messaging = {"messaging.system": "redis", "messaging.destination.name": "calculator", "messaging.message.id": "c1"}
    assert dict(tool.attributes or {}) == messaging | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "a1",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
    }
    assert dict(process.attributes or {}) == messaging | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "w1",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "c1",
        "toolbus.attempt": 2,
    }


def test_failed_call_marks_its_span(spans: InMemorySpanExporter) -> None:
    """end() with an error sets status and error type of the call's span."""
    call = telemetry.start_call_span(**CALL, agent="a1")
    assert call is not None
    call.end(ErrorInfo("deadline_exceeded", message="too late"))
    found = named(spans)
    assert found["execute_tool add"].status.status_code is StatusCode.ERROR
    assert (found["execute_tool add"].attributes or {})["error.type"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("error", "type", "events"),
    [
        (ValueError("no"), "tool_error", 1),
        (ToolError("slow down", type="rate_limited"), "rate_limited", 1),
        (CallCancelled("lost"), "cancelled", 1),
        (KeyboardInterrupt(), "cancelled", 0),
    ],
)
def test_handlers_exception_is_recorded_and_passed_on(spans: InMemorySpanExporter, error: BaseException, type: str, events: int) -> None:
    """An exception of a handler is raised on; its span has the error type that the caller will see."""
    with pytest.raises(error.__class__), handler_span(""):
        raise error
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == type
    assert len(span.events) == events


def test_first_failure_of_a_run_stays(spans: InMemorySpanExporter) -> None:
    """A run that failed for one reason and is then cancelled keeps the first reason."""

    def run() -> None:
        with handler_span("") as span:
            span.fail(ErrorInfo("deadline_exceeded"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert (spans.get_finished_spans()[0].attributes or {})["error.type"] == "deadline_exceeded"


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "x",
        *(f"00-{each * 32}-{each * 16}-{flags}" for each in "0AéX" for flags in ("00", "01", "02")),
        "ff-" + "a" * 32 + "-" + "b" * 16 + "-00",
        "00-" + "é" * 32 + "-1-01",
        "\x00" * 1000,
    ],
)
def test_unreadable_traceparent_starts_a_new_trace(spans: InMemorySpanExporter, traceparent: str) -> None:
    """A missing or malformed trace context, or the worker's ambient span, never becomes a handler's parent."""
    with tracer().start_as_current_span("ambient"), handler_span(traceparent):
        pass
    assert named(spans)["process calculator"].parent is None


def test_unsampled_call_stays_unsampled(spans: InMemorySpanExporter) -> None:
    """An agent's decision not to sample travels to the worker."""
    with telemetry.providers(tracer=TracerProvider(sampler=ParentBased(ALWAYS_OFF))):
        call = telemetry.start_call_span(**CALL, agent="a1")
    assert call is not None
    assert int(call.traceparent[-2:], 16) & 1 == 0
    with handler_span(call.traceparent):
        pass
    call.end()
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("root", [ALWAYS_OFF, ALWAYS_ON], ids=["off", "on"])
@pytest.mark.parametrize("flags", ["00", "02"])
def test_a_dropped_run_is_current_with_ids_of_its_own(root: Sampler, flags: str) -> None:
    """A handler's own spans continue the caller's trace and are dropped with it."""
    caller = f"00-{7:032x}-{9:016x}-{flags}"
    with telemetry.providers(tracer=TracerProvider(sampler=ParentBased(root))):
        with handler_span(caller):
            assert "NonRecordingSpan" in repr(trace.get_current_span()), "a handler may show it before it asks for ids"
            found = trace.get_current_span().get_span_context()
            assert trace.get_current_span().get_span_context() == found
            own = tracer().start_span("handler's own")
        assert not trace.get_current_span().get_span_context().is_valid
    assert (found.trace_id, found.trace_flags, found.is_remote, found.is_valid) == (7, int(flags, 16), False, True)
    assert found.span_id != 9
    assert not own.is_recording()
    assert own.get_span_context().trace_id == 7


@pytest.mark.parametrize("own", [False, True], ids=["usual", "own processor"])
@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF, ParentBased(ALWAYS_ON)], ids=["on", "off", "parent"])
@pytest.mark.parametrize(
    "traceparent", ["", *(f"00-{7:032x}-{9:016x}-{flags}" for flags in ("00", "01"))], ids=["none", "unsampled", "sampled"]
)
def test_a_runs_context_holds_its_span_alone(own: bool, sampler: Sampler, traceparent: str) -> None:
    """Baggage and values of whoever started the worker are no run's, whether its span is kept or dropped, and are back after it."""
    provider = TracerProvider(sampler=sampler)
    if own:
        provider.add_span_processor(OwnProcessor())
    token = attach(set_value("mine", "kept", set_baggage("user", "who starts")))
    try:
        with telemetry.providers(tracer=provider):
            with handler_span(traceparent):
                assert (get_value("mine"), get_baggage("user"), len(get_current())) == (None, None, 1)
                assert trace.get_current_span().get_span_context().is_valid
            assert (get_value("mine"), get_baggage("user")) == ("kept", "who starts")
    finally:
        detach(token)


def test_service_stands_in_for_a_missing_tool(spans: InMemorySpanExporter) -> None:
    """A call of the lower tier, which names no tool, is called after its service."""
    call = telemetry.start_call_span(tool="", service="calculator", id="c1", agent="a1")
    assert call is not None
    call.end()
    assert "execute_tool calculator" in named(spans)


# --- Nobody listens ---


def test_nothing_happens_without_an_sdk() -> None:
    """Without an SDK no spans are made, no metrics recorded, and the handler runs as ever."""
    assert not telemetry.active()
    assert not telemetry.metering()
    assert telemetry.start_call_span(**CALL, agent="a1") is None
    assert telemetry.handler_span("", **CALL, attempt=1, worker="w1") is None
    telemetry.count("toolbus.resets")
    telemetry.record_call("add", "calculator", 0.1, None)
    telemetry.record_run("calculator", 0.1, 0.0, 1, "")


def test_no_op_providers_are_not_active() -> None:
    """Providers that record nothing count as none."""
    with telemetry.providers(tracer=NoOpTracerProvider(), meter=NoOpMeterProvider()):
        assert not telemetry.active()
        assert not telemetry.metering()


def test_asking_costs_next_to_nothing() -> None:
    """active(), metering() and logs() run at most four functions each when nobody listens."""
    for ask in (telemetry.active, telemetry.metering, functools.partial(telemetry.logs, logging.DEBUG)):
        ask()
        assert 0 < steps(ask, "").total() <= 4


@pytest.mark.parametrize("environment", [False, True])
def test_global_sdk_is_noticed(environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that is configured after the import, or that the environment names, is active from then on."""
    if environment:
        monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
        monkeypatch.setenv("OTEL_PYTHON_METER_PROVIDER", "sdk_meter_provider")
    program = (
        "from toolbus.bus import telemetry\n"
        f"if not {environment}:\n"
        "    assert not telemetry.active() and not telemetry.metering()\n"
        "    from opentelemetry import trace, metrics\n"
        "    from opentelemetry.sdk.trace import TracerProvider\n"
        "    from opentelemetry.sdk.metrics import MeterProvider\n"
        "    trace.set_tracer_provider(TracerProvider()); metrics.set_meter_provider(MeterProvider())\n"
        "assert telemetry.active() and telemetry.metering()\n"
        "call = telemetry.start_call_span(tool='t', service='s', id='i', agent='a')\n"
        "assert len(call.traceparent) == 55; call.end(); telemetry.count('toolbus.resets')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


# --- Metrics ---


def test_call_and_run_are_measured(reader: InMemoryMetricReader) -> None:
    """A call's duration and outcome, a run's duration, waiting time, attempts and frames are recorded under their names."""
    telemetry.record_call("add", "calculator", 0.25, None)
    telemetry.record_call("add", "calculator", 0.5, ErrorInfo("tool_error"))
    telemetry.record_run("calculator", 0.2, 0.05, 3, "")
    telemetry.count("toolbus.resets", 2, toolbus__reason="hash")
    found = points(reader)
    assert set(found) == {
        "gen_ai.execute_tool.duration",
        "messaging.process.duration",
        "toolbus.queue.duration",
        "toolbus.calls",
        "toolbus.attempts",
        "toolbus.frames",
        "toolbus.resets",
    }
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
    calls = {frozenset(point.attributes.items()): point.sum for point in found["gen_ai.execute_tool.duration"]}
    assert calls == {frozenset(about.items()): 0.25, frozenset((about | {"error.type": "tool_error"}).items()): 0.5}
    assert [point.value for point in found["toolbus.frames"]] == [3]
    assert [(point.value, dict(point.attributes)) for point in found["toolbus.resets"]] == [(2, {"toolbus.reason": "hash"})]


def test_metrics_of_the_wrong_kind_are_refused(reader: InMemoryMetricReader) -> None:
    """A histogram can't be counted, and an unknown name is an error."""
    with pytest.raises(TypeError, match="not a counter"):
        telemetry.count("toolbus.queue.duration")
    with pytest.raises(KeyError):
        telemetry.count("toolbus.unknown")


DURATION = "messaging.process.duration"
VIEWS = {
    "none": [],
    "buckets": [View(instrument_name=DURATION, aggregation=ExplicitBucketHistogramAggregation([0.1, 0.5]))],
    "exponential": [View(instrument_name=DURATION, aggregation=ExponentialBucketHistogramAggregation())],
    "two": [View(instrument_name=DURATION), View(instrument_name=DURATION, name="second", attribute_keys={"error.type"})],
    "sum": [View(instrument_name=DURATION, aggregation=SumAggregation())],
    "dropped": [View(instrument_name="*", aggregation=DropAggregation())],
    "limited": [View(instrument_name=DURATION, aggregation_cardinality_limit=1)],
}


def durations(readers: list[InMemoryMetricReader]) -> list[dict[str, list[dict[str, Any]]]]:
    """Return what readers find about runs' durations, without the times."""
    times = re.compile(r'"(start_)?time_unix_nano": \d+')
    found = []
    for reader in readers:
        data = reader.get_metrics_data()
        metrics = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        texts = {metric.name: times.sub('"": 0', metric.to_json()) for metric in metrics if metric.name in {DURATION, "second"}}
        found.append({name: sorted(json.loads(text)["data"]["data_points"], key=str) for name, text in texts.items()})
    return found


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("filter", [AlwaysOnExemplarFilter(), TraceBasedExemplarFilter()], ids=["exemplars", "traced"])
def test_batches_are_what_single_values_would_be(views: list[View], filter: ExemplarFilter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views, exemplars, temporality and the limit of series apply to values that come in batches, for every reader."""
    # Of the values of a series without buckets, chance decides which is the exemplar.
    monkeypatch.setattr("opentelemetry.sdk.metrics._internal.exemplar.exemplar_reservoir.randrange", lambda start, stop: start)

    def provider() -> tuple[MeterProvider, list[InMemoryMetricReader]]:
        readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality={Histogram: AggregationTemporality.DELTA})]
        return MeterProvider(readers, views=views, exemplar_filter=filter), readers

    (ours, found), (theirs, wanted) = provider(), provider()
    _, unit, description = telemetry.METRICS[DURATION]
    single = theirs.get_meter("toolbus").create_histogram(DURATION, unit, description, explicit_bucket_boundaries_advisory=_BUCKETS)
    about = {"messaging.system": "redis", "messaging.operation.name": "process", "messaging.destination.name": "calculator"}
    with telemetry.providers(meter=ours):
        # Values of one bucket come with the greatest last, which is the exemplar that stays.
        for each in range(3):
            for number in range(_BATCH):
                telemetry.record_run("calculator", each + number / 64, 0.0, 1, "")
                single.record(each + number / 64, about)
            telemetry.record_run("calculator", 0.25, 0.0, 1, "tool_error")
            single.record(0.25, about | {"error.type": "tool_error"})
            if each:
                assert durations(found) == durations(wanted)
    ours.shutdown()
    theirs.shutdown()


def test_another_sdk_gets_one_value_after_the_other(reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the SDK's insides are others, every value goes through its public function."""
    monkeypatch.delattr("opentelemetry.sdk.metrics._internal.metric_reader_storage.MetricReaderStorage._get_or_init_view_instrument_match")
    recorded: list[float] = []
    monkeypatch.setattr(
        "opentelemetry.sdk.metrics._internal.instrument.Histogram.record", lambda self, value, about: recorded.append(value)
    )
    for number in range(_BATCH):
        telemetry.record_call("add", "calculator", float(number), None)
    assert recorded == list(range(_BATCH))


# --- What they cost ---


def steps(do: Callable[[], object], within: str = "opentelemetry") -> Counter[str]:
    """Return how often each function was called, of OpenTelemetry's or of all."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and f"{os.sep}{within}" in frame.f_code.co_filename:
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return found


# What was measured (17 and 36 steps), and a little more.
@pytest.mark.parametrize("root", [ALWAYS_OFF, ALWAYS_ON], ids=["unsampled", "sampled"])
def test_a_call_takes_few_steps_of_the_sdk(reader: InMemoryMetricReader, root: Sampler) -> None:
    """The SDK's tracer makes no span of a call, and values of metrics share the work of a batch."""

    def calls() -> None:
        for _ in range(_BATCH):
            call = telemetry.start_call_span(**CALL, agent="a1")
            assert call is not None
            with handler_span(call.traceparent):
                pass
            call.end()
            telemetry.record_call("add", "calculator", 0.1, None)
            telemetry.record_run("calculator", 0.1, 0.0, 1, "")

    with telemetry.providers(tracer=TracerProvider(sampler=ParentBased(root)), meter=telemetry.metering()):
        calls()
        found = steps(calls)
    assert found["Tracer.start_span"] == 0
    assert found.total() / _BATCH <= (18 if root is ALWAYS_OFF else 38), found.most_common(20)
