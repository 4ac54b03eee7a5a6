"""Isolated tools within the trace of their call."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.contract import Place
from tests.servers import eventually
from tests.worker import isolated, isolated_traced
from toolbus import ToolResult, Worker
from toolbus.bus import telemetry
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.telemetry import contained

pytestmark = pytest.mark.anyio

NONE = [trace.format_trace_id(0), trace.format_span_id(0)]


async def test_an_isolated_handler_is_part_of_its_calls_trace(namespace: str) -> None:
    """Its current span is that of its run at the worker, and spans that it starts are below that one, in every call of a child."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with Place("memory://", namespace).serving(isolated_traced) as bus:
        for number, name in enumerate(["iso_trace", "iso_trace_async", "iso_trace"], 1):
            with telemetry.providers(tracer=provider):
                told = (await bus.call(name)).data

                def runs() -> list[trace.SpanContext]:
                    spans = exporter.get_finished_spans()
                    return [span.context for span in spans if span.context is not None and span.name.startswith("process")]

                await eventually(lambda expected=number: len(runs()) == expected)
            run = runs()[-1]
            traced, span = trace.format_trace_id(run.trace_id), trace.format_span_id(run.span_id)
            assert told == [traced, span, traced, span]
        told = (await bus.call("iso_trace")).data
    assert (told[:2], told[3]) == (NONE, "")
    provider.shutdown()


async def test_an_isolated_handler_of_a_dropped_trace_drops_its_spans(namespace: str) -> None:
    """It is told of the trace, of which nothing is kept, so that spans that it starts are not kept either."""
    with telemetry.providers(tracer=TracerProvider(sampler=ALWAYS_OFF)):
        async with Place("memory://", namespace).serving(isolated_traced) as bus:
            told = (await bus.call("iso_trace")).data
    assert told[:2] != NONE
    assert (told[2], told[3]) == (told[0], "")


async def test_an_isolated_handler_knows_its_trace_where_spans_are_not_exported(namespace: str) -> None:
    """Its logs, and its requests to other servers, can name the trace."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with telemetry.providers(tracer=provider):
        async with Place("memory://", namespace).serving(isolated) as bus:
            told = (await bus.call("iso_trace_id")).output
    assert {trace.format_trace_id(span.context.trace_id) for span in exporter.get_finished_spans() if span.context is not None} == {told}


async def test_a_span_that_raises_leaves_an_isolated_handler_without_a_trace(
    namespace: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all the same, and the log says why."""
    monkeypatch.setattr(contained, "_reported", set())

    class Raising(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise RuntimeError("no context")

    async def within(call: ToolCall, following: Next) -> ToolResult:
        with trace.use_span(Raising(trace.INVALID_SPAN_CONTEXT)):
            return await following(call)

    place = Place("memory://", namespace)
    with telemetry.providers(tracer=TracerProvider()):
        async with Worker([isolated_traced], settings=place.settings, middleware=[within]), place.bus() as bus:
            assert (await bus.call("iso_trace")).data[:2] == NONE
    assert "telemetry.failed" in caplog.text


async def test_an_isolated_handler_pays_for_no_trace_that_is_not_there(namespace: str) -> None:
    """Without a span at the worker, its process loads nothing for traces."""
    async with Place("memory://", namespace).serving(isolated_traced) as bus:
        assert (await bus.call("iso_has_sdk")).data is False
