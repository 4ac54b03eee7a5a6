"""Failed runs that are tried again, over every transport."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ErrorInfo, Retry, ToolError, ToolResult, ToolService, invocation, tool
from toolbus.bus.values.events import Reset, Text

pytestmark = pytest.mark.anyio

QUICK = Retry(attempts=3, delay=0.02, most=0.05)


class Flaky(ToolService):
    """Fails as often as it is told."""

    id = "flaky"
    effect = "idempotent"
    retry = QUICK
    tools = (
        {"name": "flake", "description": "Fail some times.", "arguments": []},
        {"name": "flake_once", "description": "Fail some times, with an effect.", "arguments": [], "effect": "once"},
    )

    def __init__(self, failures: int, how: Any = None) -> None:
        self.failures = failures
        self.how = how or RuntimeError("broken")
        self.attempts: list[int] = []
        self.times: list[float] = []

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        self.attempts.append(invocation().attempt)
        self.times.append(time.monotonic())
        yield "begun "
        if len(self.attempts) <= self.failures:
            if isinstance(self.how, ToolResult):
                yield self.how
                return
            raise self.how
        yield "done"


async def test_a_failed_run_is_tried_again_without_the_caller_seeing_it(place: Place) -> None:
    """The text of the attempts is one whole: nothing lost, repeated or reset."""
    service = Flaky(2)
    async with place.serving(service) as bus:
        async with bus.stream("flake") as call:
            events = [event async for event in call.events()]
        result = await call.result()
    assert (result.output, result.meta.attempts, service.attempts) == ("begun done", 3, [1, 2, 3])
    assert "".join(event.text for event in events if isinstance(event, Text)) == "begun done"
    assert not any(isinstance(event, Reset) for event in events)


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
seen: list[str] = []


@tool(service="traces", effect="read", retry=Retry(attempts=3, delay=0.01, most=0.02))
async def leave_trace() -> str:
    """Say what the context variable is, leave the user in it, and fail some times."""
    seen.append(variable.get())
    variable.set(invocation().user)
    await asyncio.sleep(0.01)
    if invocation().attempt < 3:
        raise RuntimeError("not yet")
    return "done"


async def test_a_further_attempt_finds_no_context_variables_of_other_runs(place: Place) -> None:
    """It often starts when another caller's run ends, and takes nothing over from that one, nor from the attempt before."""
    seen.clear()
    async with place.serving(leave_trace, concurrency=2) as bus:
        await bus.wait_for_tool("leave_trace")
        results = await asyncio.gather(*(bus.call("leave_trace", user=f"user {number}", timeout=30) for number in range(6)))
    assert [result.output for result in results] == ["done"] * 6
    assert seen == [""] * 18


async def test_what_fails_at_every_attempt_is_answered_and_set_aside(place: Place) -> None:
    """After the last attempt the caller gets the last error, and the request becomes a dead letter with its history."""
    service = Flaky(99)
    async with place.serving(service) as bus:
        result = await bus.call("flake", {"x": 1})
        assert result.error is not None
        assert (result.error.type, result.error.code, result.meta.attempts) == ("tool_error", "RuntimeError", 3)
        client = redis.Redis.from_url(place.settings.url)
        prefix = f"tb:{{{place.settings.namespace}}}:"
        [(_, letter)] = await eventually(lambda: client.xrange(f"{prefix}dlq:flaky"))
        await eventually(lambda: client.xlen(f"{prefix}q:flaky") == 0)
        client.close()
    assert (letter[b"reason"], letter[b"attempts"]) == (b"retries_exhausted", b"3")
    assert b"broken" in letter[b"error"]
    assert msgspec.json.decode(letter[b"r"])["arguments"] == {"x": 1}


@pytest.mark.parametrize(
    ("how", "runs"),
    [
        (RuntimeError("broken"), 2),
        (ToolError("later", retryable=True), 2),
        (ToolError("never"), 1),
        (ToolError("no", type="invalid_arguments"), 1),
        (ToolResult.fail(ErrorInfo("tool_error", message="later", retryable=True)), 2),
        (ToolResult.fail("never"), 1),
    ],
    ids=str,
)
async def test_only_what_may_pass_is_tried_again(place: Place, how: Any, runs: int) -> None:
    """Crashes and failures that say retryable are; other failures are answers."""
    service = Flaky(1, how)
    async with place.serving(service) as bus:
        result = await bus.call("flake")
    assert (len(service.attempts), result.success) == (runs, runs == 2)


async def test_once_work_is_never_tried_again(place: Place) -> None:
    """The policy of a service leaves out its once tools, and a once function may not ask for one."""
    service = Flaky(1)
    async with place.serving(service) as bus:
        result = await bus.call("flake_once")
    assert not result.success
    assert service.attempts == [1]
    with pytest.raises(ConfigurationError, match="once"):

        @tool(effect="once", retry=QUICK)
        async def pay() -> None:
            """Pay."""


async def test_retry_after_is_waited_for(place: Place) -> None:
    """A failure that says when to come back is not tried before."""
    service = Flaky(1, ToolError("busy", type="rate_limited", retryable=True, retry_after=0.3))
    async with place.serving(service) as bus:
        assert (await bus.call("flake")).success
    assert service.times[1] - service.times[0] >= 0.3


async def test_no_retry_is_begun_that_the_deadline_would_cut(place: Place) -> None:
    """A failure is answered at once when the wait alone would pass the deadline."""
    service = Flaky(1, ToolError("busy", retryable=True, retry_after=30.0))
    async with place.serving(service) as bus:
        result = await bus.call("flake", timeout=5.0)
    assert result.error is not None
    assert (result.error.retry_after, service.attempts) == (30.0, [1])


async def test_a_call_that_waits_for_its_retry_holds_no_slot(place: Place) -> None:
    """With a single slot another call runs meanwhile, and a cancelled one is not tried again."""
    service = Flaky(1, ToolError("busy", retryable=True, retry_after=20.0))

    @tool(service="beside", effect="read", replace=True)
    async def quick() -> str:
        """Answer at once."""
        return "here"

    async with place.worker(service, quick, concurrency=1), place.bus() as bus:
        await bus.wait_for_tool("flake")
        call = asyncio.create_task(bus.call("flake", timeout=60.0))
        await eventually(lambda: service.attempts)
        assert (await bus.call("quick", timeout=5.0)).output == "here"
        call.cancel()
        await asyncio.wait([call])
    assert service.attempts == [1]


@given(
    st.builds(Retry, delay=st.floats(0, 100), most=st.floats(0, 100), jitter=st.floats(0, 1)),
    st.integers(1, 10_000),
    st.none() | st.floats(0, 1000),
)
def test_delays_stay_within_their_bounds(retry: Retry, attempt: int, retry_after: float | None) -> None:
    """A delay is never longer than the most, unless the failure asked for more, and never shorter than that."""
    delay = retry.after(attempt, retry_after)
    assert delay <= max(retry.most, retry_after or 0.0)
    assert delay >= (retry_after or 0.0)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"delay": -1.0}, {"most": -1.0}, {"jitter": 2.0}])
def test_a_senseless_policy_is_refused(wrong: dict[str, Any]) -> None:
    """Values out of range are named."""
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be"):
        Retry(**wrong)
