"""An application's telemetry that raises: calls go on, and it is said once."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

from tests.contract import Place
from toolbus import ToolError, tool
from toolbus.bus import telemetry
from toolbus.bus.telemetry import contained, metrics, spans
from toolbus.bus.telemetry import logger as event_logger
from toolbus.bus.telemetry.events import NAME
from toolbus.bus.values.results import ErrorInfo

pytestmark = pytest.mark.anyio

# The package has a function of this name.
providers = importlib.import_module("toolbus.bus.telemetry.providers")


def fail(*_: object, **__: object) -> NoReturn:
    """Raise, as an application's code may."""
    raise RuntimeError("the application's")


class Raising:
    """An object whose every method raises; those that are named return what was given for them."""

    def __init__(self, **returned: object) -> None:
        self._returned = returned

    def __getattr__(self, name: str) -> Any:
        if name in self._returned:
            return lambda *_, **__: self._returned[name]
        return fail


class RaisingSpan(trace.NonRecordingSpan):
    """A span that does not tell its ids."""

    get_span_context = fail


class RaisingProcessor(SpanProcessor):
    """A processor one of whose steps raises."""

    def __init__(self, step: str) -> None:
        setattr(self, step, fail)


class RaisingSampler(Sampler):
    """A sampler that decides nothing."""

    def should_sample(self, *_: Any, **__: Any) -> NoReturn:
        fail()

    def get_description(self) -> str:
        return "raising"


def tracing(*processors: SpanProcessor, **options: Any) -> contextlib.AbstractContextManager[None]:
    """Export spans by the SDK through these processors."""
    made = TracerProvider(**options, shutdown_on_exit=False)
    for processor in processors:
        made.add_span_processor(processor)
    return telemetry.providers(tracer=made)


@contextlib.contextmanager
def logging_to(*, filter: Callable[..., Any] | None = None, emit: Callable[..., Any] | None = None) -> Iterator[None]:
    """Log through a filter, or a handler, of the application."""
    found, handler = logging.getLogger(NAME), logging.Handler()
    if filter is not None:
        found.addFilter(filter)
    if emit is not None:
        handler.emit = emit  # type: ignore[method-assign]
        found.addHandler(handler)
    try:
        yield
    finally:
        found.removeHandler(handler)
        if filter is not None:
            found.removeFilter(filter)


@contextlib.contextmanager
def structured(processor: Callable[..., Any]) -> Iterator[None]:
    """Log through a processor of the application's structlog."""
    before, providers.ours[:] = providers.ours[:], []
    kept = structlog.get_config() if structlog.is_configured() else None
    structlog.configure([processor])
    try:
        yield
    finally:
        providers.ours[:] = before
        structlog.reset_defaults()
        if kept is not None:
            structlog.configure(**kept)


@contextlib.contextmanager
def within(span: Any) -> Iterator[None]:
    """Log within a span of the application."""
    from opentelemetry.context import attach, detach

    token = attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        detach(token)


PARTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "log filter": lambda: logging_to(filter=fail),
    "log handler": lambda: logging_to(emit=fail),
    "structlog processor": lambda: structured(fail),
    "span that logs are within": lambda: within(RaisingSpan(trace.INVALID_SPAN_CONTEXT)),
    "tracer provider": lambda: telemetry.providers(tracer=Raising()),  # type: ignore[arg-type]
    "tracer": lambda: telemetry.providers(tracer=Raising(get_tracer=Raising())),  # type: ignore[arg-type]
    "span": lambda: telemetry.providers(
        tracer=Raising(get_tracer=Raising(start_span=Raising(get_span_context=trace.INVALID_SPAN_CONTEXT)))  # type: ignore[arg-type]
    ),
    "sampler": lambda: tracing(sampler=RaisingSampler()),
    "span processor's start": lambda: tracing(RaisingProcessor("on_start")),
    "span processor's end": lambda: tracing(RaisingProcessor("on_end")),
    "exporter": lambda: tracing(SimpleSpanProcessor(Raising())),  # type: ignore[arg-type]
    "meter provider": lambda: telemetry.providers(meter=Raising()),  # type: ignore[arg-type]
    "meter": lambda: telemetry.providers(meter=Raising(get_meter=Raising())),  # type: ignore[arg-type]
    "instruments": lambda: telemetry.providers(
        meter=Raising(get_meter=Raising(create_observable_counter=None, create_histogram=Raising()))  # type: ignore[arg-type]
    ),
}


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report every failure anew, and each value at once."""
    monkeypatch.setattr(contained, "_reported", set())
    monkeypatch.setattr(event_logger, "_reported", [])
    monkeypatch.setattr(metrics, "_BATCH", 1)
    monkeypatch.setattr(metrics, "_instruments", None)
    monkeypatch.setattr(spans, "_made", None)
    event_logger.repeats.forget()


@tool(service="observed", replace=True)
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(service="observed", replace=True)
async def refuse() -> None:
    """Fail."""
    raise ToolError("no")


@pytest.mark.parametrize("part", PARTS)
async def test_a_call_ends_as_without_telemetry(place: Place, part: str) -> None:
    """A success stays one, and an error the same one, whichever part of an application's telemetry raises."""
    with PARTS[part]():
        async with place.serving(double, refuse) as bus:
            for _ in range(2):
                result = await bus.call("double", {"number": 4})
                assert (result.success, result.output) == (True, "8")
                failed = await bus.call("refuse")
                assert failed.error is not None
                assert (failed.error.type, failed.error.message) == ("tool_error", "no")


def _run() -> None:
    span = telemetry.handler_span("", tool="t", service="s", id="i", attempt=1, worker="w")
    if span is not None:
        with span:
            span.fail(ErrorInfo("tool_error"))


def _call() -> None:
    span = telemetry.start_call_span(tool="t", service="s", id="i", agent="a")
    if span is not None:
        span.end(ErrorInfo("tool_error"))


def _continue() -> None:
    with telemetry.continued("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        pass


def _log() -> None:
    for level in ("debug", "info", "warning", "error", "exception"):
        getattr(telemetry.log, level)("link.restored")


# By the name of each function that code calls which is not about telemetry.
USES: dict[str, Callable[[], object]] = {
    "active": telemetry.active,
    "continued": _continue,
    "count": lambda: telemetry.count("toolbus.resets"),
    # Without an SDK nobody asks.
    "current_traceparent": lambda: telemetry.active() and telemetry.current_traceparent(),
    "flush_logging": telemetry.flush_logging,
    "handler_span": _run,
    "log": _log,
    "logs": lambda: telemetry.logs(logging.INFO),
    "metering": telemetry.metering,
    "record_call": lambda: telemetry.record_call("t", "s", 0.1, None),
    "record_run": lambda: telemetry.record_run("s", 0.1, 0.1, 1, ""),
    "start_call_span": _call,
}
# What sets telemetry up, tables and types.
_OTHERS = {"configure_export", "configure_logging", "providers", "EVENTS", "METRICS", "NAME", "CallSpan", "HandlerSpan", "LogFormat"}


@pytest.mark.parametrize("part", PARTS)
def test_nothing_that_an_application_raises_comes_out(
    part: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, in the log or where that raises on standard error, whichever function met it."""
    assert USES.keys() == set(telemetry.__all__) - _OTHERS
    caplog.set_level(logging.DEBUG, NAME)
    with PARTS[part]():
        for _ in range(3):
            for use in USES.values():
                use()
    said = caplog.text.count("telemetry.failed") + capsys.readouterr().err.count("said once")
    # The SDK says itself what its exporters raise.
    assert said == (0 if part == "exporter" else 1)


def test_what_can_not_be_reported_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that an application's provider does not take are lost with their batch, and so are the runs beside them."""
    monkeypatch.setattr(metrics.Instruments, "_report_calls", fail)
    with telemetry.providers(meter=MeterProvider(shutdown_on_exit=False)):
        for _ in range(1_000):
            telemetry.record_call("t", "s", 0.1, None)
            telemetry.record_run("s", 0.1, 0.1, 1, "")
        found = metrics._instruments
        assert found is not None
        assert len(found.calls) + len(found.runs) <= 2 * metrics._BATCH
