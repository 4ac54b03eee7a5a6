"""Spans that are made without the SDK's tracer: when that is done, and that they are the same."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
    _TracerConfig,
    sampling,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from tests.test_telemetry import CALL, OwnProcessor, handler_span, tracer
from toolbus.bus import telemetry
from toolbus.bus.telemetry.lean import SAMPLED, Lean, LeanSpan, context_of


def started(lean: Lean, parent: SpanContext | None, about: dict[str, Any]) -> Any:
    """Return a span under a parent, as those of calls and runs are made."""
    drawn = lean.draw(parent)
    if drawn[2] & SAMPLED:
        return lean.keep("x", drawn, parent, SpanKind.CONSUMER, about)
    return trace.NonRecordingSpan(context_of(drawn, None if parent is None else parent.trace_state))


def test_nothing_is_made_for_what_is_said_of_a_span_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes too late, and would start a span that nobody ends."""
    provider = TracerProvider()
    with telemetry.providers(tracer=provider):
        span = started(Lean(tracer()), None, {})
    span.end()
    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", pytest.fail)
    span.set_attribute("late", 1)
    assert not span.is_recording()
    provider.shutdown()


class OwnIds(RandomIdGenerator):
    pass


class OwnSampler(TraceIdRatioBased):
    pass


UNUSUAL: dict[str, dict[str, Any]] = {
    "sampler": {"sampler": OwnSampler(1.0)},
    "root": {"sampler": ParentBased(OwnSampler(1.0))},
    "parents": {"sampler": ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON)},
    "ids": {"id_generator": OwnIds()},
    "length": {"span_limits": SpanLimits(max_span_attribute_length=10)},
    "number": {"span_limits": SpanLimits(max_span_attributes=3)},
    "processors": {"active_span_processor": ConcurrentMultiSpanProcessor()},
    "processor": {"processor": OwnProcessor()},
    "disabled": {"_tracer_configurator": lambda scope: _TracerConfig(is_enabled=False)},
    "counted": {"variable": "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_tracer_makes_spans_of_an_unusual_set_up(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An application's own sampler, ids, limits or processors do to a span what they would."""
    setup = dict(UNUSUAL[name])
    variable, processor = setup.pop("variable", None), setup.pop("processor", None)
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    provider = TracerProvider(**setup)
    if processor is not None:
        provider.add_span_processor(processor)
    with telemetry.providers(tracer=provider), pytest.raises(ValueError, match="another set-up"):
        Lean(tracer())
    with telemetry.providers(tracer=provider):
        call = telemetry.start_call_span(**CALL, agent="a1")
        with handler_span("" if call is None else call.traceparent):
            assert not isinstance(trace.get_current_span(), LeanSpan)
    provider.shutdown()


@pytest.mark.parametrize("name", sampling._KNOWN_SAMPLERS)
def test_spans_of_each_standard_sampler_are_made_without_the_tracer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each sampler that ``OTEL_TRACES_SAMPLER`` can name is a usual one."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    provider = TracerProvider()
    with telemetry.providers(tracer=provider):
        assert Lean(tracer()).holds()
    provider.shutdown()


def test_a_processor_that_is_added_later_sees_the_next_span_start() -> None:
    """An application may add a processor of its own while calls are made."""
    provider, started = TracerProvider(), []

    class Noting(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            started.append(span.name)

    with telemetry.providers(tracer=provider):
        for _ in range(2):
            call = telemetry.start_call_span(**CALL, agent="a1")
            assert call is not None
            call.end()
            provider.add_span_processor(Noting())
    assert started == ["execute_tool add"]
    provider.shutdown()


@pytest.mark.parametrize("parent", [None, 0, 1, 2, 3, 0x83], ids=lambda flags: f"flags={flags}")
@pytest.mark.parametrize(
    "sampler",
    [root for rate in (0.0, 0.25, 1.0) for root in (TraceIdRatioBased(rate), ParentBased(TraceIdRatioBased(rate)))]
    + [ALWAYS_ON, ALWAYS_OFF, ParentBased(ALWAYS_ON), ParentBased(ALWAYS_OFF)],
    ids=lambda sampler: sampler.get_description()[:40],
)
def test_spans_are_kept_as_the_sampler_would(monkeypatch: pytest.MonkeyPatch, sampler: Sampler, parent: int | None) -> None:
    """Spans that the SDK's tracer would keep are kept, and have the flags and the trace that it gives them."""
    provider = TracerProvider(sampler=sampler)
    with telemetry.providers(tracer=provider):
        asks, lean = tracer(), Lean(tracer())
    for number in range(50):
        trace_id = (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 1) % 2**128
        monkeypatch.setattr(RandomIdGenerator, "generate_trace_id", lambda self, trace_id=trace_id: trace_id)
        caller = None if parent is None else SpanContext(trace_id, 7, True, TraceFlags(parent), TraceState([("a", "b")]))
        within = trace.set_span_in_context(trace.INVALID_SPAN if caller is None else trace.NonRecordingSpan(caller))
        theirs = asks.start_span("x", within)
        ours = started(lean, caller, {})
        assert ours.is_recording() == theirs.is_recording()
        expected, found = theirs.get_span_context(), ours.get_span_context()
        assert (found.trace_id, found.trace_flags, found.is_remote) == (expected.trace_id, expected.trace_flags, expected.is_remote)
        assert found.trace_state == expected.trace_state
    provider.shutdown()


@pytest.mark.parametrize("rate", [0.0, 2**-64, 0.25, 1.0])
def test_traces_that_calls_begin_are_kept_as_the_sampler_would(rate: float) -> None:
    """The header of a new trace has the decision that the sampler makes of its id, and no two are the same."""
    sampler = TraceIdRatioBased(rate)
    with telemetry.providers(tracer=TracerProvider(sampler=sampler)):
        lean = Lean(tracer())
        headers = [lean.root() for _ in range(500)]
    assert len({header[:35] for header in headers}) == len({header[36:52] for header in headers}) == 500
    for header in headers:
        version, trace_id, span_id, flags = header.split("-")
        assert (version, len(trace_id), len(span_id)) == ("00", 32, 16)
        asked = sampler.should_sample(None, int(trace_id, 16), "x")
        assert int(flags, 16) == 2 | asked.decision.is_sampled()


def test_a_forked_process_begins_other_traces_than_its_parent() -> None:
    """Ids are drawn many at a time, and those that a child was born with are its parent's."""
    program = (
        "import os\nfrom opentelemetry.sdk.trace import TracerProvider\nfrom toolbus.bus import telemetry\n"
        "def header():\n    return telemetry.start_call_span(tool='t', service='s', id='i', agent='a').traceparent\n"
        "with telemetry.providers(tracer=TracerProvider()):\n    header()\n    child = os.fork()\n    print(header(), flush=True)\n"
        "    child and os.waitpid(child, 0)\n"
    )
    said = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(set(said.split())) == 2


def touch(span: Any) -> None:
    """Do everything to a span that its interface has, and read what only the SDK's has."""
    span.set_attribute("a", 1)
    span.set_attributes({"b": 2})
    span.add_event("noted", {"c": 3}, timestamp=5)
    span.add_link(SpanContext(9, 9, True))
    span.update_name("renamed")
    span.record_exception(ValueError("bad"), timestamp=6)
    span.set_status(StatusCode.OK)
    assert span.is_recording()
    assert span.name == "renamed"
    assert span.attributes["a"] == 1


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("flags", [None, 1, 3], ids=lambda flags: f"flags={flags}")
def test_a_span_is_the_same_as_the_tracers(touched: bool, flags: int | None) -> None:
    """A processor gets the same span, whether the SDK's tracer made it or nothing but its end was asked for."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    caller = None if flags is None else SpanContext(5, 7, True, TraceFlags(flags), TraceState([("a", "b")]))
    within = trace.set_span_in_context(trace.INVALID_SPAN if caller is None else trace.NonRecordingSpan(caller))
    with telemetry.providers(tracer=provider):
        made = [
            tracer().start_span("x", within, SpanKind.CONSUMER, {"k": "v"}),
            started(Lean(tracer()), caller, {"k": "v"}),
        ]
    told = []
    for span in made:
        begun_by = time.time_ns()
        if touched:
            touch(span)
        span.end()
        assert not span.is_recording()
        span.end()
        span.set_attribute("late", 1)
        found = json.loads(exporter.get_finished_spans()[-1].to_json())
        assert found["context"].pop("span_id") == f"0x{span.get_span_context().span_id:016x}"
        assert caller is not None or found["context"].pop("trace_id") == f"0x{span.get_span_context().trace_id:032x}"
        assert found.pop("start_time") <= found.pop("end_time")
        assert (exporter.get_finished_spans()[-1].start_time or 0) <= begun_by
        found["events"] = [event["name"] for event in found["events"]]
        told.append((found, exporter.get_finished_spans()[-1].instrumentation_scope, exporter.get_finished_spans()[-1].resource))
    assert len(exporter.get_finished_spans()) == 2
    assert told[0] == told[1]
    provider.shutdown()
