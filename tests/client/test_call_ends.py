"""The ends of a call from this side: given up, expired or not published, and what is measured of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.client.calling import Host, answer, made, request
from tests.client.frames import ONE, run
from toolbus import ErrorInfo
from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.client.calls import call as call_module
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.confirmations import Grant
from toolbus.bus.telemetry.metrics import OTHER

pytestmark = pytest.mark.anyio

ERROR = ErrorInfo("unavailable", "why", "because")


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the 12th second, all the time."""
    monkeypatch.setattr(call_module, "time", SimpleNamespace(monotonic=lambda: 12.0))


@pytest.fixture
def meters() -> Iterator[InMemoryMetricReader]:
    """Collect metrics."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with telemetry.providers(meter=provider):
        yield reader
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Return the one point of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, Any] = {}
    for scope in data.resource_metrics[0].scope_metrics:
        for metric in scope.metrics:
            [found[metric.name]] = metric.data.data_points
    return found


# --- Ended from this side ---


async def test_a_call_that_is_ended_tells_the_worker() -> None:
    """The result has the given error and what came so far; it comes once."""
    host = Host()
    call = made(host)
    for frame in run(2, "a", ONE, end=False):
        call.feed(frame, 1.0)
    call.complete_with(ERROR)
    call.complete_with(ErrorInfo("cancelled"))
    result = await call.result()
    assert (result.success, result.error, result.output, result.content) == (False, ERROR, "a", (ONE,))
    assert (result.meta.id, result.meta.attempts, result.meta.worker) == ("c", 2, "worker-2")
    assert (host.withdrawn, host.forgotten) == ([call], [call])


@pytest.mark.parametrize("ended", [False, True])
async def test_a_call_that_is_dropped_keeps_nothing(ended: bool) -> None:
    """A dropped call has neither text nor events nor a result, only its error and what is known of its run."""
    host = Host()
    call = made(host, streaming=True)
    for frame in run(2, "a" * 1_000, ONE, end=ended):
        call.feed(frame, 1.0)
    assert call.unread >= 1_000
    call.drop(ERROR)
    result = await call.result()
    assert (result.success, result.error, result.output, result.content, call.unread) == (False, ERROR, None, (), 0)
    assert (result.meta.id, result.meta.worker) == ("c", "worker-2" if ended else "")
    assert host.withdrawn == ([] if ended else [call])


async def test_a_call_that_is_attached_to_another_one_is_not_launched_again() -> None:
    """An attached call reads the replies of the other one until that one's deadline."""
    host = Host()
    call = made(host, launched=False)
    call.attached(other := request(), 30.0)
    call.feed(answer(1, "done"), 1.0)
    assert (await call.result()).output == "done"
    assert (call.request, call.deadline, host.launched) == (other, 30.0, [])


async def test_a_dropped_call_that_nobody_streams_has_the_error_alone() -> None:
    """A call without events can be dropped, too, and ends with the error."""
    call = made(Host())
    call.drop(ERROR)
    assert (await call.result()).error == ERROR


@pytest.mark.parametrize("effect", ["", "read", "idempotent"])
async def test_a_call_that_may_run_twice_is_given_up_at_once(effect: str) -> None:
    """Only for a ``once`` call it matters whether it began."""
    host = Host()
    call = made(host, request=request(effect=effect))
    call.give_up(ERROR)
    assert (await call.result()).error == ERROR
    assert (host.withdrawn, host.inquired) == ([call], [])


async def test_a_once_call_is_inquired_about() -> None:
    """It ends when the bus knows whether it began, or with its answer."""
    host = Host()
    call = made(host, request=request(effect="once"))
    call.give_up(ERROR)
    assert (call.done, host.inquired, host.withdrawn) == (False, [(call, ERROR)], [])
    call.feed(answer(1, "done"), 1.0)
    call.give_up(ERROR)
    assert (await call.result()).output == "done"
    assert host.inquired[1:] == []


async def test_an_unpublished_call_is_given_up_at_once() -> None:
    """Without a request nothing can have begun."""
    host = Host()
    call = made(host)
    call.give_up(ERROR)
    assert (await call.result()).error == ERROR
    assert host.inquired == []


async def test_a_call_that_was_never_published_expires() -> None:
    """It has no request, whose timeout the message would say."""
    call = made(Host())
    call.expire()
    error = (await call.result()).error
    assert error is not None
    assert error.type == "deadline_exceeded"


async def test_what_became_of_an_expired_call_is_asked_or_known() -> None:
    """The broker is asked where a call stands that was queued; one of which frames have come was taken."""
    host = Host()
    queued = made(host, request=request(timeout=2.5), entry="1-0")
    queued.expire()
    assert [call for call, _ in host.inquired] == [queued]
    begun = made(host, streaming=True, request=request(timeout=2.5), entry="2-0")
    begun.feed(run(1, "a", end=False)[0], 1.0)
    begun.expire()
    error = (await begun.result()).error
    assert error is not None
    assert (error.type, error.code) == ("deadline_exceeded", "not_finished")
    assert len(host.inquired) == 1


async def test_a_call_whose_worker_is_gone_did_not_run_too_long() -> None:
    """When its time is up and no worker of its service lives, that is the reason that the caller is told."""
    host = Host()
    host.available = False
    begun = made(host, streaming=True, request=request(timeout=2.5), entry="2-0")
    begun.feed(run(1, "a", end=False)[0], 1.0)
    begun.expire()
    error = (await begun.result()).error
    assert error is not None
    assert (error.type, error.code) == ("deadline_exceeded", "worker_lost")
    assert error.message.endswith("the worker that took it has stopped, and no live worker serves 's' now")


async def test_a_call_expires() -> None:
    """Past its deadline a call ends with an error that names its timeout and may be tried again."""
    call = made(Host(), request=request(timeout=2.5))
    call.expire()
    error = (await call.result()).error
    assert error is not None
    assert (error.type, error.code, error.retryable) == ("deadline_exceeded", "", True)
    assert "2.5 s" in error.message


# --- The broker's answer ---


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_a_queued_call_waits_for_its_answer(withdrawn: bool) -> None:
    """The entry is kept; a call that was given up before it was known is now cancelled at the broker."""
    host = Host()
    call = made(host, withdrawn=withdrawn, grant=Grant(None, published=True))
    call.settle(Verdict("queued", "1-0"))
    assert (call.entry, call.done, call.grant.published) == ("1-0", False, True)
    assert host.withdrawn == [call] * withdrawn


@pytest.mark.parametrize(("status", "type_"), [("full", "overloaded"), ("absent", "unavailable"), ("failed", "unavailable")])
async def test_a_refused_call_ends_and_its_permit_is_free(status: Any, type_: str) -> None:
    """A refused call ends with the reason, tells no worker, and may be permitted again."""
    host = Host()
    call = made(host, request=request(), grant=Grant(None, published=True))
    call.settle(Verdict(status, message="no"))
    error = (await call.result()).error
    assert error is not None
    assert (error.type, call.grant.published, host.withdrawn, host.forgotten) == (type_, False, [], [call])


async def test_a_refusal_names_the_service() -> None:
    """The error of a full queue says which service's queue is meant."""
    call = made(Host(), request=request())
    call.settle(Verdict("full", depth=7))
    error = (await call.result()).error
    assert error is not None
    assert "'s'" in error.message


async def test_an_unknown_verdict_uses_the_permit_up() -> None:
    """A call that may have been published must not be published again with the same permission."""
    call = made(Host(), request=request(), grant=Grant(None, published=True))
    call.settle(Verdict("unknown", message="gone"))
    error = (await call.result()).error
    assert error is not None
    assert (error.type, call.grant.published) == ("outcome_unknown", True)


async def test_a_refusal_after_the_end_changes_nothing() -> None:
    """A call that was cancelled before the broker refused it stays cancelled; its permit is free, too."""
    host = Host()
    call = made(host, grant=Grant(None, published=True))
    call.cancel()
    result = await call.result()
    call.settle(Verdict("full"))
    assert await call.result() is result
    assert (call.grant.published, host.forgotten) == (False, [call])


# --- What is measured ---


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("end", ["answer", "stream", "error"])
async def test_a_result_has_the_calls_time(end: str) -> None:
    """Every result says how many milliseconds the call took, from its start."""
    call = made(Host(), streaming=end == "stream", started=10.5)
    if end == "error":
        call.complete_with(ERROR)
    else:
        call.feed(answer(), 12.0)
    assert (await call.result()).meta.ms == 1500.0


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("published", [False, True])
async def test_a_call_is_counted_and_timed(meters: InMemoryMetricReader, published: bool) -> None:
    """Metrics have the seconds, the error's type, and of a call that was published the tool and its service."""
    call = made(Host(), started=10.5, request=request() if published else None)
    call.complete_with(ERROR)
    found = points(meters)
    time, count = found["gen_ai.execute_tool.duration"], found["toolbus.calls"]
    assert (time.sum, time.count, time.attributes["gen_ai.tool.name"]) == (1.5, 1, "t" if published else OTHER)
    assert (count.value, count.attributes["messaging.destination.name"]) == (1, "s" if published else "")
    assert time.attributes["error.type"] == count.attributes["error.type"] == "unavailable"


async def test_resets_are_counted(meters: InMemoryMetricReader) -> None:
    """Metrics have the number of attempts that diverged."""
    call = made(Host())
    for frame in (*run(1, "abc", end=False), *run(2, "x")):
        call.feed(frame, 1.0)
    assert points(meters)["toolbus.resets"].value == 1


async def test_the_span_of_a_call_ends_with_it() -> None:
    """The span of a call ends with the result and its error, not with the broker's answer to its publication."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def ended() -> list[str]:
        return [span.name for span in exporter.get_finished_spans()]

    with telemetry.providers(tracer=provider):
        call: Call = made(Host(), span=telemetry.start_call_span(tool="t", service="s", id="c", agent="a"))
        call.settle(Verdict("queued", "1-0"))
        assert ended() == []
        call.complete_with(ERROR)
    assert ended() == ["execute_tool t"]
    assert exporter.get_finished_spans()[0].attributes["error.type"] == "unavailable"
    provider.shutdown()
