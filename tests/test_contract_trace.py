"""One trace from the agent's call to the handler, and on into nested calls, over every transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.contract import Place
from toolbus import ToolError, invocation, telemetry, tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Collects the spans of this test alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with telemetry.providers(tracer=provider):
        yield exporter


@tool(service="traced", effect="read")
async def leaf() -> str:
    """Do the work."""
    return "done"


@tool(service="traced", effect="read")
async def branch() -> str:
    """Let another tool do the work."""
    return str(await invocation().call("leaf"))


@tool(service="traced", effect="read")
async def refuse() -> str:
    """Refuse."""
    raise ToolError("no", type="forbidden")


async def test_nested_calls_are_one_trace(place: Place, spans: InMemorySpanExporter) -> None:
    """Agent, publication, handler, and the handler's own call share a trace id and form one chain."""
    async with place.serving(leaf) as bus:
        assert (await bus.call("branch")).output == "done"
    found = {(span.name, i): span for i, span in enumerate(spans.get_finished_spans())}
    names = sorted(name for name, _ in found)
    assert names == sorted(["execute_tool branch", "execute_tool leaf", *["send traced", "process traced"] * 2])
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    by_id = {span.context.span_id: span for span in found.values() if span.context}
    (inner,) = [span for span in found.values() if span.name == "execute_tool leaf"]
    chain = []
    while inner is not None:
        chain.append(inner.name)
        inner = by_id.get(inner.parent.span_id) if inner.parent else None  # type: ignore[assignment]
    assert chain == ["execute_tool leaf", "process traced", "send traced", "execute_tool branch"]


async def test_a_failure_marks_the_spans(place: Place, spans: InMemorySpanExporter) -> None:
    """The call's and the handler's span carry the error's type."""
    async with place.serving(leaf) as bus:
        await bus.call("refuse")
    failed = {span.name for span in spans.get_finished_spans() if (span.attributes or {}).get("error.type") == "forbidden"}
    assert failed == {"execute_tool refuse", "process traced"}
