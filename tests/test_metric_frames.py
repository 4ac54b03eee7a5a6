"""The frames that workers count, each for itself and for OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.contract import Place
from tests.servers import eventually
from toolbus import Retry, ToolService, tool
from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin

pytestmark = pytest.mark.anyio


class Counted(ToolService):
    """Tools whose calls end in different ways."""

    id = "counted"

    @tool(effect="read")
    def plain(self) -> str:
        """Answer."""
        return "done"

    @tool(effect="read")
    async def several(self) -> AsyncIterator[str]:
        """Answer in several frames."""
        for number in range(3):
            yield str(number)
            await asyncio.sleep(0.05)

    @tool(effect="read", retry=Retry(attempts=2, delay=0.01, most=0.02))
    def fails(self) -> str:
        """Fail at every attempt."""
        raise RuntimeError("broken")

    @tool(effect="read")
    async def waits(self) -> str:
        """Answer never."""
        await asyncio.Event().wait()
        return ""


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Provide a reader of what is recorded."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=provider):
        yield reader
    provider.shutdown()


def exported(reader: InMemoryMetricReader) -> int:
    """Return how many frames of all services OpenTelemetry was told of."""
    data = reader.get_metrics_data()
    if data is None:
        return 0
    metrics = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return sum(point.value for metric in metrics if metric.name == "toolbus.frames" for point in metric.data.data_points)  # type: ignore[union-attr, misc]


async def test_frames_of_a_worker_are_those_of_opentelemetry(place: Place, reader: InMemoryMetricReader) -> None:
    """The last frame of each call counts in both, in whichever way the call ends; a call without a caller has none."""
    async with place.worker(Counted()) as worker, place.bus() as bus, Admin(place.settings) as admin:
        await bus.wait_for_tool("plain")

        async def counts(known: int = 0) -> tuple[int, int]:
            await eventually(lambda: worker.statistics()["running"] == 0 and worker.statistics()["frames_sent"] > known)
            return worker.statistics()["frames_sent"], exported(reader)

        assert all(result.success for result in await asyncio.gather(*(bus.call("plain") for _ in range(20))))
        assert await counts() == (20, 20)
        assert (await bus.call("several")).output == "012"
        sent, told = await counts(20)
        assert sent == told > 21
        assert not (await bus.call("fails")).success
        assert (await bus.call("waits", timeout=0.3)).error is not None
        assert await counts(sent + 1) == (sent + 2, told + 2)
        [letter] = await admin.dead_letters.ids("counted")
        await admin.dead_letters.redrive("counted", letter, limit=100)

        async def failed_again() -> bool:
            return [letter] != await admin.dead_letters.ids("counted") != []

        await eventually(failed_again)
        assert (await bus.call("plain")).success
        assert await counts(sent + 2) == (sent + 3, told + 3)
