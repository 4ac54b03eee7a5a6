"""The label values of metrics, which callers must not be able to multiply."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.contract import Place
from toolbus import ErrorInfo, tool
from toolbus.bus import telemetry

NAME = "gen_ai.execute_tool.duration"


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Provide a reader of what is recorded."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=provider):
        yield reader
    provider.shutdown()


def counted(reader: InMemoryMetricReader, metric_name: str = NAME, label: str = "gen_ai.tool.name") -> dict[str, int]:
    """Return the number of calls by a label."""
    found: dict[str, int] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == metric_name:
            for point in metric.data.data_points:
                name = str((point.attributes or {})[label])
                # A point of a histogram has a count, one of a counter a value.
                found[name] = found.get(name, 0) + int(getattr(point, "count", None) or point.value)  # type: ignore[union-attr]
    return found


@tool(service="measured", effect="read")
async def plain() -> str:
    """Answer."""
    return "yes"


@pytest.mark.anyio
async def test_made_up_names_are_one_series(place: Place, reader: InMemoryMetricReader) -> None:
    """Calls of tools that do not exist are counted together, and those of a known tool under its name, also when they are refused."""
    async with place.serving(plain) as bus:
        await bus.wait_for_tool("plain")
        assert not (await bus.call("plain", {"wrong": 1})).success
        assert (await bus.call("plain")).success
        for number in range(50):
            assert not (await bus.call(f"made-up-{number}")).success
    assert counted(reader) == {"plain": 2, "_OTHER": 50}
    assert counted(reader, "toolbus.calls", "messaging.destination.name") == {"measured": 2, "": 50}


def test_known_names_are_capped(reader: InMemoryMetricReader) -> None:
    """Beyond a thousand, tools share one series; those that came first keep theirs."""
    for number in range(1_010):
        telemetry.record_call(f"tool-{number}", "generated", 0.1, None)
    telemetry.record_call("tool-0", "generated", 0.1, ErrorInfo("tool_error"))
    found = counted(reader)
    assert len(found) == 1_001
    assert (found["tool-0"], found["_OTHER"]) == (2, 10)
