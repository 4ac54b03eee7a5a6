"""Reports: the log lines, metrics and spans of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.worker.unit.fakes import Bench, echo, lines
from toolbus import ErrorInfo, ToolError, ToolResult, telemetry, tool
from toolbus.worker.run.report import report_end

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
    report_end(Bench(echo).delivery(""), 0.5, 1, None, None)
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
