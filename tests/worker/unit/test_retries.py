"""Retries: failed requests that are run again after a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.virtual_time import NOW
from tests.worker.unit.fakes import Bench, flaky, handlers, hold, lines
from toolbus import Blob, ErrorInfo, Retry, ToolError, ToolResult, tool
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
async def crash() -> str:
    """Crash."""
    handlers.seen.append(asyncio.get_running_loop().time())
    raise ValueError("broken")


async def test_a_failed_run_is_run_again_after_its_delay(seen: list[Any]) -> None:
    """The second attempt comes a second later, and its failure becomes a dead letter."""
    bench = Bench(crash)
    bench.slots.start(bench.delivery("crash"))
    await bench.settle()
    assert (bench.broker.ends, bench.broker.buried, bench.slots.running, bench.slots.busy()) == ([], [], 0, True)
    await asyncio.sleep(0.9)
    assert bench.broker.retried == []
    await asyncio.sleep(0.2)
    assert seen == [NOW, pytest.approx(NOW + 1.0, abs=0.05)]
    assert [delivery.attempt for delivery in bench.broker.retried] == [1]
    [letter] = bench.broker.buried
    assert (letter.reason, letter.error, letter.frame.attempt) == ("retries_exhausted", "tool_error: broken", 2)
    assert not bench.slots.busy()


async def test_once_work_is_never_run_again() -> None:
    """A tool with a retry policy, called as ``once`` work, is answered with its first failure."""
    end = await (bench := Bench(crash)).run("crash", effect="once")
    assert end.frame.error is not None
    assert end.frame.error.code == "ValueError"
    assert not bench.slots.busy()


async def test_only_what_may_succeed_later_is_run_again() -> None:
    """A ToolError is run again when it is retryable, and answered when it is not."""

    @tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def refuse(retryable: bool) -> str:
        """Fail."""
        raise ToolError("no", code="refused", retryable=retryable)

    bench = Bench(refuse)
    bench.slots.start(bench.delivery("refuse", {"retryable": True}))
    await bench.settle()
    assert bench.slots.busy()
    bench.slots.start(bench.delivery("refuse", {"retryable": False}))
    await bench.settle()
    assert bench.broker.errors() == [("tool_error", "refused")]


async def test_retries_have_the_server_count_them(seen: list[Any]) -> None:
    """Each attempt is one more, up to the policy's number; then the failure is a dead letter."""
    bench = Bench(flaky)
    bench.slots.start(bench.delivery("flaky", deadline=2000.0))
    await asyncio.sleep(10)
    assert [delivery.attempt for delivery in bench.broker.retried] == [1, 2]
    assert [letter.reason for letter in bench.broker.buried] == ["retries_exhausted"]
    assert len(seen) == 3


async def test_no_retry_after_the_last_delivery_or_the_deadline() -> None:
    """A worker allows no more attempts than any delivery has, and none that could not begin in time."""
    for bench, changes in ((Bench(flaky, max_deliveries=2), {"attempt": 2}), (Bench(flaky), {"deadline": 1001.0})):
        bench.slots.start(bench.delivery("flaky", **changes), alone=True)
        await bench.settle()
        assert [letter.reason for letter in bench.broker.buried] == ["retries_exhausted"]
        assert not bench.slots.busy()


async def test_a_retry_waits_for_a_slot(gate: asyncio.Event, seen: list[Any]) -> None:
    """It starts when another run ends."""
    bench = Bench(flaky, hold, concurrency=1)
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    bench.slots.start(bench.delivery("hold"))
    await asyncio.sleep(2)
    assert (seen, len(bench.broker.retried)) == (["tried", ""], 1)
    gate.set()
    await bench.settle()
    assert seen == ["tried", "", "tried"]


async def test_a_retry_that_another_worker_has_is_dropped(seen: list[Any]) -> None:
    """The call runs there."""
    bench = Bench(flaky)
    bench.broker.retry_answers = [None]
    bench.slots.start(bench.delivery("flaky"))
    await asyncio.sleep(5)
    assert (len(seen), len(bench.broker.retried), bench.slots.busy()) == (1, 1, False)


async def test_a_retry_that_the_server_does_not_count_is_made_later(caplog: pytest.LogCaptureFixture, seen: list[Any]) -> None:
    """It is counted again a second later, as long as the call has time."""
    bench = Bench(flaky)
    bench.broker.retry_answers = [BrokerUnavailable("gone"), BrokerUnavailable("gone")]
    bench.slots.start(bench.delivery("flaky"))
    await asyncio.sleep(8)
    assert (len(seen), len(bench.broker.retried), bench.slots.busy()) == (3, 4, False)
    assert lines(caplog)[1:3] == ["retry.failed id=call-1 error=gone"] * 2


async def test_a_retry_that_is_not_counted_in_time_ends_its_call(seen: list[Any]) -> None:
    """It is answered, and not held for ever by a worker that does not run it."""
    bench = Bench(flaky)
    bench.broker.retry_answers = [BrokerUnavailable("gone")]
    bench.slots.start(delivery := bench.delivery("flaky", deadline=NOW + 1.5))
    await asyncio.sleep(8)
    assert (len(seen), len(bench.broker.retried), bench.slots.busy()) == (1, 1, False)
    assert bench.broker.errors() == [("deadline_exceeded", "not_finished")]
    assert not delivery.is_held


async def test_a_retry_that_is_counted_while_the_worker_leaves_is_handed_back(seen: list[Any]) -> None:
    """It is not run here again."""
    bench = Bench(flaky)
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    bench.slots.stop()
    await asyncio.sleep(2)
    assert len(seen) == 1
    assert [(delivery.attempt, delivery.run) for delivery in bench.broker.handed_back] == [(2, "run-1+")]


async def test_a_waiting_retry_can_be_cancelled_lost_and_given_up(seen: list[Any]) -> None:
    """Cancelled, it is answered; lost, it is forgotten; without its caller it is answered with the reason."""
    bench = Bench(flaky)
    deliveries = [bench.delivery("flaky", replies=replies) for replies in ("a", "a", "b")]
    for delivery in deliveries:
        bench.slots.start(delivery)
        await bench.settle()
    bench.slots.on_cancelled(deliveries[0].request.id)
    bench.slots.on_lost(deliveries[1])
    bench.slots.on_replies_gone("b", ErrorInfo("cancelled", "caller_gone"))
    assert not bench.slots.busy()
    assert bench.broker.errors() == [("cancelled", "not_begun"), ("cancelled", "caller_gone")]
    assert bench.broker.ends[0].frame.error is not None
    assert bench.broker.ends[0].frame.error.message == "cancelled by the caller before the tool began"
    await asyncio.sleep(5)
    assert (len(seen), bench.broker.retried) == (3, [])


async def test_a_result_that_may_succeed_later_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    """A failure that is returned counts as one that is raised; each attempt is logged, and the last one becomes a dead letter."""

    @tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def refuse() -> ToolResult:
        """Fail by the result."""
        error = ErrorInfo("rate_limited", "slow", "later", retryable=True)
        return ToolResult(success=False, error=error, content=(Blob("image/png", b"12"),))

    bench = Bench(refuse)
    bench.slots.start(bench.delivery("refuse"))
    await asyncio.sleep(2)
    assert (bench.broker.ends, bench.broker.frames, len(bench.broker.retried)) == ([], [], 1)
    [letter] = bench.broker.buried
    assert (letter.reason, letter.error) == ("retries_exhausted", "rate_limited: later")
    assert letter.frame.error == ErrorInfo("rate_limited", "slow", "later", retryable=True, origin="tool")
    assert [line.split()[:2] for line in lines(caplog)] == [
        *[["call.failed", "error=rate_limited"]] * 2,
        ["request.buried", "service=unit"],
    ]


async def test_a_failure_may_say_when_to_try_again(seen: list[Any]) -> None:
    """The next attempt comes no sooner than that."""

    @tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def refuse() -> str:
        """Fail for three seconds."""
        seen.append(asyncio.get_running_loop().time())
        raise ToolError(ErrorInfo("rate_limited", retryable=True, retry_after=3.0))

    bench = Bench(refuse)
    bench.slots.start(bench.delivery("refuse"))
    await asyncio.sleep(5)
    assert seen == [NOW, pytest.approx(NOW + 3.0, abs=0.05)]


async def test_a_retry_need_not_run_alone(seen: list[Any]) -> None:
    """A request that failed in this process has not killed it, so it starts beside others whatever its attempt."""
    bench = Bench(flaky, hold, max_deliveries=3)
    assert bench.settings.alone_from == 2
    bench.slots.start_all([bench.delivery("flaky"), bench.delivery("hold", {"name": "beside"})])
    await asyncio.sleep(1.1)
    assert seen == ["tried", "beside", "tried"]


async def test_the_last_failure_is_logged_with_its_traceback_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Attempts before are told in a line each; the last one with the handler's lines, and that the request was set aside."""
    bench = Bench(crash)
    bench.slots.start(bench.delivery("crash"))
    await asyncio.sleep(1.2)
    found = [(record.getMessage().split()[0], record.exc_info is not None) for record in caplog.records]
    assert found == [("call.failed", False), ("call.crashed", True), ("request.buried", False)]
    assert caplog.records[2].getMessage() == "request.buried service=unit tool=crash id=call-1 reason=retries_exhausted"
    assert 'raise ValueError("broken")' in caplog.text


async def test_a_failure_without_a_caller_is_logged_as_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else learns of it."""

    @tool(service="unit", replace=True)
    async def refuse() -> str:
        """Fail."""
        raise ToolError("no", code="refused")

    bench = Bench(refuse)
    delivery = bench.delivery("refuse")
    delivery.replies = ""
    bench.slots.start(delivery)
    await bench.settle()
    assert lines(caplog)[-1] == "request.buried service=unit tool=refuse id=call-1 reason=failed"
