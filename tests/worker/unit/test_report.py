"""Reports: the log lines, metrics and spans of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.worker.unit.fakes import Bench, echo, lines, pay
from toolbus import ErrorInfo, Retry, ToolError, ToolResult, tool
from toolbus.bus import telemetry
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.worker.outcome import ENDS, End, report_end
from toolbus.bus.worker.run import Run

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Provide the spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with telemetry.providers(tracer=provider):
        yield exporter
    provider.shutdown()


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Provide the metrics."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=provider):
        yield reader
    provider.shutdown()


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[float, dict[str, Any]]]]:
    """The sum and attributes of each metric's points."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return {metric.name: [(_sum(point), dict(point.attributes or {})) for point in metric.data.data_points] for metric in metrics}


def _sum(point: Any) -> float:
    """The total of a histogram's point, or the value of a counter's."""
    total: float = point.sum if hasattr(point, "sum") else point.value
    return total


@tool(service="unit", replace=True)
async def fail_late(kind: str = "") -> ToolResult:
    """Take 1.23456 seconds, and fail."""
    await asyncio.sleep(1.23456)
    if kind == "raise":
        raise ToolError("no", code="refused")
    if kind == "crash":
        raise ValueError("broken")
    return ToolResult.fail(ErrorInfo("rate_limited", "slow", "later"))


@pytest.fixture
def signals() -> Iterator[tuple[InMemorySpanExporter, InMemoryMetricReader]]:
    """Provide the spans that have ended and the metrics, both at once."""
    exporter, tracer, reader = InMemorySpanExporter(), TracerProvider(), InMemoryMetricReader()
    tracer.add_span_processor(SimpleSpanProcessor(exporter))
    meter = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=meter, tracer=tracer):
        yield exporter, reader
    tracer.shutdown()
    meter.shutdown()


# -- every end ----------------------------------------------------------------------------------------


@tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
async def again() -> str:
    """Fail, and be tried again."""
    raise ToolError("no", code="busy", retryable=True)


@tool(service="unit", replace=True)
async def linger() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "late"


class Case(NamedTuple):
    """One way to an end: what brings it about once the call has been given to the worker, and what is then told of it.

    Attributes:
        outcome: among the recent calls; None when this worker tells nothing.
        error, code: everywhere; empty when another worker goes on with the call.
        measured: ``error.type`` of the metrics; None when nothing ran.
    """

    end: End
    tool: str
    act: Callable[[Bench, Delivery], object]
    event: str
    outcome: str | None
    error: str = ""
    code: str = ""
    measured: str | None = ""
    changes: Mapping[str, Any] = {}


def _nothing(bench: Bench, delivery: Delivery) -> None:
    pass


def _run(bench: Bench, delivery: Delivery) -> Run:
    return bench.slots._runs[delivery.run]


TIME = {"error": "deadline_exceeded", "code": "not_finished", "measured": "deadline_exceeded"}
GONE = ErrorInfo("cancelled", "caller_gone", "the calling agent is gone")
CASES: Mapping[str, Case] = {
    "finished": Case("finished", "echo", _nothing, "call.finished", "succeeded"),
    "failed": Case("failed", "fail_late", _nothing, "call.failed", "failed", "rate_limited", "slow", "rate_limited"),
    "time is up": Case("failed", "linger", _nothing, "call.failed", "failed", **TIME),
    "the caller's time is up": Case(
        "failed", "linger", lambda bench, delivery: bench.slots.on_cancelled(delivery.request.id, "deadline_exceeded"),
        "call.failed", "failed", **TIME,
    ),
    "retried": Case("retried", "again", _nothing, "call.failed", "retried", "tool_error", "busy", "tool_error"),
    "nobody learns": Case("dead", "fail_late", _nothing, "call.failed", "dead", "rate_limited", "slow", "rate_limited", {"replies": ""}),
    "cancelled": Case(
        "cancelled", "linger", lambda bench, delivery: bench.slots.on_cancelled(delivery.request.id),
        "call.cancelled", "cancelled", "cancelled", "", "cancelled",
    ),
    "the caller reads too slowly": Case(
        "cancelled", "linger", lambda bench, delivery: bench.slots.on_cancelled(delivery.request.id, "slow_consumer"),
        "call.cancelled", "cancelled", "cancelled", "slow_consumer", "cancelled",
    ),
    "the caller is gone": Case(
        "cancelled", "linger", lambda bench, delivery: bench.slots.on_replies_gone("a", GONE),
        "call.cancelled", "cancelled", "cancelled", "caller_gone", "cancelled",
    ),
    "the worker leaves": Case(
        "handed_back", "linger", lambda bench, delivery: _run(bench, delivery).interrupt(),
        "call.handed_back", "lost", measured="handed_back",
    ),
    "the worker breaks off": Case(
        "handed_back", "linger", lambda bench, delivery: _run(bench, delivery).abandon(),
        "call.handed_back", "lost", measured="handed_back",
    ),
    "the worker leaves once work": Case(
        "failed", "pay", lambda bench, delivery: _run(bench, delivery).interrupt(),
        "call.failed", "failed", "outcome_unknown", "worker_stopped", "outcome_unknown",
    ),
    "lost": Case("lost", "linger", lambda bench, delivery: bench.slots.on_lost(delivery), "call.lost", None, measured="lost"),
    "unknown": Case("refused", "nothing", _nothing, "call.failed", "failed", "not_found", "", None),
    "too late": Case(
        "refused", "echo", _nothing, "call.failed", "failed", "deadline_exceeded", "not_taken", None, {"deadline": 0.0}
    ),
    "cancelled before": Case(
        "withdrawn", "echo", _nothing, "call.cancelled", "cancelled", "cancelled", "not_begun", None, {"id": "early"}
    ),
    "given up before": Case(
        "refused", "echo", _nothing, "call.failed", "failed", "deadline_exceeded", "not_taken", None, {"id": "expired"}
    ),
    "too many attempts": Case("buried", "echo", _nothing, "call.failed", "dead", "tool_error", "max_deliveries", None, {"attempt": 9}),
}  # fmt: skip


def test_every_end_has_a_case() -> None:
    """Another end is tried below, too."""
    assert {case.end for case in CASES.values()} == set(ENDS)


@pytest.mark.parametrize("name", CASES)
async def test_every_end_is_told_everywhere_with_its_reason(
    name: str, signals: tuple[InMemorySpanExporter, InMemoryMetricReader], caplog: pytest.LogCaptureFixture, gate: asyncio.Event
) -> None:
    """One log line, one record among the recent calls, one measurement, one count, and a span: all say how it ended, and why."""
    caplog.set_level(logging.INFO, logger="toolbus")
    spans, reader = signals
    case = CASES[name]
    bench = Bench(echo, fail_late, again, linger, pay, max_deliveries=5)
    bench.slots.on_cancelled("early")
    bench.slots.on_cancelled("expired", "deadline_exceeded")
    delivery = bench.delivery(case.tool, {"text": "x"} if case.tool == "echo" else None, **case.changes)
    bench.slots.start(delivery)
    bench.slots.watch_deadlines()
    await asyncio.sleep(0.5)
    case.act(bench, delivery)
    await asyncio.sleep(0.2 if case.end == "retried" else 12.0)
    told = [line for line in lines(caplog) if line.startswith("call.")]
    assert [line.split()[0] for line in told] == [case.event]
    assert f"id={delivery.request.id} attempt={delivery.attempt} ms=" in told[0]
    if case.error:
        assert f"error={case.error} code={case.code or chr(34) * 2} " in told[0]
    noted = [(each.outcome, each.error and (each.error.type, each.error.code)) for _, _, each in bench.broker.noted]
    assert noted == ([] if case.outcome is None else [(case.outcome, (case.error, case.code) if case.error else None)])
    found = measured(reader).get("messaging.process.duration", []) if case.measured is not None else []
    assert [attributes.get("error.type", "") for _, attributes in found] == ([] if case.measured is None else [case.measured])
    finished = spans.get_finished_spans()
    assert len(finished) == (case.measured is not None)
    for span in finished:
        assert (span.attributes or {}).get("error.type", "") == (case.error or ("cancelled" if case.measured else ""))
    [counted] = bench.slots.answer().tools
    kind = ENDS[case.end].counted
    assert (counted.started, counted.cancelled) == (kind != "refused", kind == "cancelled")
    assert {**counted.failed, **counted.refused} == ({case.error: 1} if case.error and kind != "cancelled" else {})


# -- log lines ----------------------------------------------------------------------------------------


async def test_an_end_is_a_line_with_the_call_and_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """A success and its milliseconds, a failure with the type and code of its error, a crash with its class."""
    caplog.set_level(logging.INFO, logger="toolbus")
    bench = Bench(echo, fail_late)
    await bench.run("echo", {"text": "secret"}, user="u", attempt=2)
    for kind in ("", "raise", "crash"):
        bench.slots.start(bench.delivery("fail_late", {"kind": kind}))
    await asyncio.sleep(2)
    assert lines(caplog) == [
        "call.finished tool=echo user=u id=call-1 attempt=2 ms=0.0",
        'call.failed error=rate_limited code=slow message=later tool=fail_late user="" id=call-2 attempt=1 ms=1234.6',
        'call.failed error=tool_error code=refused message=no tool=fail_late user="" id=call-3 attempt=1 ms=1234.6',
        'call.crashed error=ValueError tool=fail_late user="" id=call-4 attempt=1 ms=1234.6',
    ]


@tool(service="unit", replace=True)
async def forget(what: str) -> Any:
    """Return what can't be sent."""
    values: dict[str, Callable[[], Any]] = {
        "await": lambda: [echo("x")],
        "items": lambda: {"parts": (part for part in "ab")},
        "object": lambda: [object()],
    }
    return values[what]()


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(("what", "advice"), [("await", "was an `await` left out?"), ("items", "yield its items"), ("object", "use texts")])
async def test_a_result_that_can_not_be_sent_is_told_with_advice_and_no_traceback(
    what: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback would show no line of the handler, so the line says what to do."""
    bench = Bench(forget)
    await bench.run("forget", {"what": what})
    [record] = caplog.records
    assert record.exc_info is None
    assert record.getMessage().startswith("call.failed error=tool_error code=unencodable_result")
    assert advice in record.getMessage()
    assert advice in bench.broker.ends[0].frame.error.message


async def test_a_refusal_of_arguments_is_logged_without_them(caplog: pytest.LogCaptureFixture) -> None:
    """Its message quotes what the caller sent, which logs never hold."""
    bench = Bench(echo)
    await bench.run("echo", {"text": 5})
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("call.failed error=invalid_arguments code=")
    assert "message=" not in caplog.records[0].getMessage()


async def test_the_line_of_a_call_without_a_tool_names_its_service(caplog: pytest.LogCaptureFixture) -> None:
    """The untyped lower tier has no tools."""
    caplog.set_level(logging.INFO, logger="toolbus")
    bench = Bench(echo)
    report_end("finished", bench.delivery(""), None, bench.slots.sampling, 10.5, 10.0, frames=1)
    assert lines(caplog) == ['call.finished tool=unit user="" id=call-1 attempt=1 ms=500.0']


async def test_failures_are_logged_when_successes_are_not(caplog: pytest.LogCaptureFixture) -> None:
    """At the level of warnings, a success says nothing."""
    caplog.set_level(logging.WARNING, logger="toolbus")
    bench = Bench(echo, fail_late)
    await bench.run("echo", {"text": "hi"})
    bench.slots.start(bench.delivery("fail_late"))
    await asyncio.sleep(2)
    assert [line.split()[0] for line in lines(caplog)] == ["call.failed"]


# -- metrics ------------------------------------------------------------------------------------------


async def test_runs_are_measured(reader: InMemoryMetricReader) -> None:
    """The time that a run took and its request waited, its attempt and its frames, also when nothing is logged."""
    bench = Bench(fail_late)
    bench.slots.start(bench.delivery("fail_late", events=True, queued_ms=250.0))
    await asyncio.sleep(2)
    about = {"messaging.destination.name": "unit"}
    found = measured(reader)
    [(seconds, attributes)] = found["messaging.process.duration"]
    assert seconds == pytest.approx(1.23456)
    assert attributes == {**about, "messaging.system": "redis", "messaging.operation.name": "process", "error.type": "rate_limited"}
    assert found["toolbus.queue.duration"] == [(0.25, about)]
    assert found["toolbus.attempts"] == [(1, about)]
    assert found["toolbus.frames"] == [(2, about)]


async def test_the_answer_to_a_call_that_did_not_run_is_measured(reader: InMemoryMetricReader) -> None:
    """Its frame counts, as that of any other call that has a caller, and it is no attempt."""
    bench = Bench(echo)
    for replies in ("a", ""):
        bench.slots.start(bench.delivery("echo", {"text": "hi"}, deadline=0.0, replies=replies))
        await asyncio.sleep(2)
    found = measured(reader)
    assert found["toolbus.frames"] == [(1, {"messaging.destination.name": "unit"})]
    assert "toolbus.attempts" not in found


async def test_a_success_is_measured_when_it_is_not_logged(reader: InMemoryMetricReader) -> None:
    """It has no error type."""
    await Bench(echo).run("echo", {"text": "hi"})
    [(_, attributes)] = measured(reader)["messaging.process.duration"]
    assert "error.type" not in attributes


# -- spans --------------------------------------------------------------------------------------------


async def test_a_run_is_a_span_of_its_callers_trace(spans: InMemorySpanExporter) -> None:
    """It names the tool, the call, the attempt and the worker."""
    end = await Bench(echo).run("echo", {"text": "hi"}, attempt=2, traceparent=f"00-{TRACE}-{SPAN}-01")
    assert end.frame.response == "hi"
    [span] = spans.get_finished_spans()
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert (span.name, span.status.status_code) == ("process unit", StatusCode.UNSET)
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.tool.name"] == "echo"
    assert attributes["messaging.destination.name"] == "unit"
    assert attributes["messaging.message.id"] == "call-1"
    assert attributes["messaging.client.id"] == "worker-1"
    assert attributes["toolbus.attempt"] == 2


@pytest.mark.parametrize(("kind", "error"), [("", "rate_limited"), ("crash", "tool_error")])
async def test_a_failed_run_marks_its_span(spans: InMemorySpanExporter, kind: str, error: str) -> None:
    """An error that the handler returns counts as much as one that it raises."""
    bench = Bench(fail_late)
    bench.slots.start(bench.delivery("fail_late", {"kind": kind}))
    await asyncio.sleep(2)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == error
