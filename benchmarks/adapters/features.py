"""The kinds of toolbus's tools and what can be put around them, one caller and many workers: see ``benchmarks.features``."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from opentelemetry import metrics, trace
from pydantic import BaseModel

from benchmarks.adapters.contract import Peer, Setup, main
from benchmarks.peers import NAMESPACE
from toolbus import Retry, ToolBus, ToolService, tool
from toolbus.bus.client.confirmations import Confirmation
from toolbus.middleware import Cache, Metering, RateLimit

FEATURE = os.environ.get("BENCH_FEATURE", "coroutine")


def export(share: float) -> None:
    """Have an SDK keep spans of a share of the calls, and all metrics, and export them in batches to nowhere."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class NoSpans(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    class NoMetrics(MetricExporter):
        def export(self, metrics_data: Any, timeout_millis: float = 0, **options: Any) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 0) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 0, **options: Any) -> None:
            pass

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(NoSpans()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=500)]))


if FEATURE in {"otel", "otel-1%"}:
    export(1.0 if FEATURE == "otel" else 0.01)

limit = RateLimit(1_000_000, 1.0)
meter = Metering()
cache = Cache(60.0)


@tool
async def echo(text: str) -> str:
    """Return the argument."""
    return text


@tool(effect="read")
async def read(text: str) -> str:
    """Return the argument."""
    return text


@tool
def plain(text: str) -> str:
    """Return the argument."""
    return text


@tool
async def generator(text: str) -> AsyncIterator[str]:
    """Yield the argument."""
    yield text


@tool
def plain_generator(text: str) -> Iterator[str]:
    """Yield the argument."""
    yield text


@tool(effect="once")
async def once(text: str) -> str:
    """Return the argument."""
    return text


@tool(effect="read", confirm=True)
async def confirmed(text: str) -> str:
    """Return the argument."""
    return text


class Text(BaseModel):
    """A checked argument."""

    text: str
    length: int = 0


@tool
async def model(value: Text) -> str:
    """Return the argument's text."""
    return value.text


class Retried(ToolService):
    """A service whose failed runs are tried again."""

    id = "retried"
    retry = Retry(attempts=3)

    @tool(effect="read")
    async def retried(self, text: str) -> str:
        """Return the argument."""
        return text


class TwoTier(ToolService):
    """A service that several descriptors share."""

    id = "two-tier"
    config_params: ClassVar[list[str]] = ["style"]
    effect = "read"
    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "two_tier",
            "description": "Return the argument",
            "style": "plain",
            "arguments": [{"name": "text", "type": "string", "description": "any"}],
        }
    ]

    async def invoke(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """Return the argument."""
        return str(arguments["text"])


class Sticky(ToolService):
    """A service that keeps its sessions where they began."""

    id = "sticky"
    sticky_sessions = True

    @tool(effect="read")
    async def in_session(self, text: str) -> str:
        """Return the argument."""
        return text


class Second(ToolService):
    """A service that nobody calls."""

    id = "second"

    @tool(effect="read")
    async def second(self) -> str:
        """Return nothing."""
        return ""


class Third(ToolService):
    """Another service that nobody calls."""

    id = "third"

    @tool(effect="read")
    async def third(self) -> str:
        """Return nothing."""
        return ""


Call = Callable[[str], Coroutine[Any, Any, str]]


def calling(bus: ToolBus, name: str) -> Call:
    """Return what calls a tool with a text."""
    numbers = itertools.count()

    async def call(text: str) -> str:
        return (await bus.call(name, {"text": text})).output

    async def call_model(text: str) -> str:
        return (await bus.call(name, {"value": {"text": text}})).output

    async def call_in_session(text: str) -> str:
        # Calls of one session run one after another, so those in flight are of different ones.
        return (await bus.call(name, {"text": text}, session=f"s{next(numbers) % 64}")).output

    async def call_uncached(text: str) -> str:
        # Each text is another one, since what is measured is what a miss costs.
        return (await bus.call(name, {"text": uuid.uuid4().hex + text})).output[32:]

    if FEATURE in {"executor", "confirmed"}:
        return executing(bus, name)
    if FEATURE == "pydantic":
        return call_model
    if FEATURE == "session":
        return call_in_session
    return call_uncached if FEATURE == "cache-miss" else call


async def allow(confirmation: Confirmation) -> bool:
    """Allow everything at once."""
    return True


def executing(bus: ToolBus, name: str) -> Call:
    """Return what calls a tool with a text as a model's calls are run; nobody else is asked whether it may run."""
    executor = bus.executor(user="benchmark", confirmer=allow, confirm_anywhere=False)

    async def execute(text: str) -> str:
        return str(await executor.execute(name, {"text": text}))

    return execute


class Caller:
    """Calls of one tool over one bus."""

    def __init__(self, bus: ToolBus) -> None:
        self.echo = calling(bus, os.environ["BENCH_TOOL"])


async def serve(setup: Setup) -> None:
    """End, and say how a worker is started: only as users start it.

    Raises:
        SystemExit: always.
    """
    raise SystemExit("start a worker with: toolbus worker benchmarks.adapters.features:NAME")


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a bus and wait for the tool."""
    async with ToolBus(setup.url, namespace=NAMESPACE) as bus:
        await bus.wait_for_tool(os.environ["BENCH_TOOL"], timeout=10)
        yield Caller(bus)


if __name__ == "__main__":
    main(Peer(serve, connect))
