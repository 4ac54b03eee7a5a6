"""One trace from the agent through the stream to the handler, over every transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.baggage import get_all, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from tests.contract import Place
from tests.servers import eventually
from toolbus import invocation, tool
from toolbus.bus import telemetry
from toolbus.edges.gateway.calls import trace_headers

pytestmark = pytest.mark.anyio


@tool(service="traced-inner", effect="read")
async def traced_inner() -> str:
    """Tell the current span's trace."""
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)


@tool(service="traced-outer", effect="read")
async def traced_outer() -> str:
    """Call another tool."""
    return (await invocation().call("traced_inner")).output or ""


@tool(service="traced-outer", effect="read")
def traced_thread() -> str:
    """Call another tool from a thread."""
    return invocation().call_sync("traced_inner").output or ""


@tool(service="traced-inner", effect="read")
async def traced_baggage() -> dict[str, object]:
    """Tell the baggage."""
    return dict(get_all())


@tool(service="traced-outer", effect="read")
async def traced_failure() -> str:
    """Fail."""
    raise ValueError("broken")


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Provide the exporter of spans while a test runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with telemetry.providers(tracer=provider):
        yield exporter
    provider.shutdown()


async def ended(exporter: InMemorySpanExporter, count: int) -> dict[str, ReadableSpan]:
    """Return the finished spans by name, once there are this many."""
    await eventually(lambda: len(exporter.get_finished_spans()) >= count)
    return {span.name: span for span in exporter.get_finished_spans()}


def lineage(found: dict[str, ReadableSpan], name: str) -> list[str]:
    """Return a span's name and those of its ancestors, nearest first."""
    by_id = {span.context.span_id: span for span in found.values() if span.context is not None}
    names, span = [name], found[name]
    while span.parent is not None:
        span = by_id[span.parent.span_id]
        names.append(span.name)
    return names


async def test_a_call_is_one_trace(place: Place, spans: InMemorySpanExporter) -> None:
    """The agent's call and the handler are one trace, the second under the first."""
    async with place.serving(traced_inner) as bus:
        output = (await bus.call("traced_inner")).output
        found = await ended(spans, 2)
    assert lineage(found, "process traced-inner") == ["process traced-inner", "execute_tool traced_inner"]
    assert found["process traced-inner"].context is not None
    assert output == trace.format_trace_id(found["process traced-inner"].context.trace_id)


@pytest.mark.parametrize("root", [ALWAYS_OFF, ALWAYS_ON], ids=["dropped", "kept"])
async def test_a_gateways_answer_names_the_trace_of_its_call(place: Place, root: Sampler) -> None:
    """Its client may look for what the handler says it was part of, also where no span is kept."""
    with telemetry.providers(tracer=TracerProvider(sampler=ParentBased(root))):
        async with place.worker(traced_inner), place.bus() as bus:
            await bus.wait_for_tool("traced_inner")
            async with bus.stream("traced_inner") as call:
                result = await call.result()
    assert trace_headers(call)["traceparent"].split("-")[1] == result.output


@pytest.mark.usefixtures("spans")
async def test_a_handler_has_no_baggage_of_who_started_its_worker(place: Place) -> None:
    """Baggage that was current when the worker started is in no run of it."""
    token = attach(set_baggage("user", "who starts"))
    try:
        async with place.serving(traced_baggage) as bus:
            assert (await bus.call("traced_baggage")).data == {}
    finally:
        detach(token)


@pytest.mark.parametrize("name", ["traced_outer", "traced_thread"])
async def test_a_nested_call_joins_the_trace(place: Place, spans: InMemorySpanExporter, name: str) -> None:
    """Nested calls of a handler, from a coroutine or a thread, hang below the handler's span."""
    async with place.serving(traced_inner, traced_outer) as bus:
        assert (await bus.call(name)).success
        found = await ended(spans, 4)
    assert lineage(found, "process traced-inner") == [
        "process traced-inner",
        "execute_tool traced_inner",
        "process traced-outer",
        f"execute_tool {name}",
    ]


async def test_failures_are_marked_and_every_span_ends(place: Place, spans: InMemorySpanExporter) -> None:
    """A failed handler marks its span and the caller's; a call that was never published leaves no open span."""
    async with place.serving(traced_outer) as bus:
        await bus.call("traced_failure")
        found = await ended(spans, 2)
        await bus.call("nobody")
        async with bus.stream("traced_failure") as call:
            call.cancel()
        await eventually(lambda: sum(span.name == "execute_tool traced_failure" for span in spans.get_finished_spans()) == 2)
    for name in ("process traced-outer", "execute_tool traced_failure"):
        assert not found[name].status.is_ok
