"""The circuit breaker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract import Place
from tests.middleware.guarded import call_of, error_of, runs, serving
from tests.servers import eventually
from toolbus import ErrorInfo, ToolResult
from toolbus.middleware import CircuitBreaker, Next, ToolCall

pytestmark = pytest.mark.anyio


async def test_a_circuit_opens_tries_once_and_closes(place: Place) -> None:
    """After failures in a row a tool is left alone; then one call is tried, and its success lets the others through."""
    breaker = CircuitBreaker(failures=2, cooldown=0.3)
    async with serving(place, breaker), place.bus() as bus:
        for _ in range(2):
            assert (await error_of(bus, "read", {"fail": True})).type == "tool_error"
        before = len(runs)
        error = await error_of(bus, "read")
        assert (error.type, error.code, error.retryable, len(runs)) == ("unavailable", "circuit_open", True, before)
        assert (await bus.call("write")).success

        async def closed() -> bool:
            return (await bus.call("read")).success

        await eventually(closed)
        assert (await bus.call("read")).success


async def test_a_failed_try_opens_the_circuit_again_and_a_cancelled_one_does_not_lock_it() -> None:
    """While one call is tried others are refused; its failure opens the circuit anew, its cancellation leaves room for the next try."""
    breaker = CircuitBreaker(failures=1, cooldown=0.05)
    entered, release = asyncio.Event(), asyncio.Event()

    async def crash(call: ToolCall) -> ToolResult:
        raise RuntimeError("down")

    async def hang(call: ToolCall) -> ToolResult:
        entered.set()
        await release.wait()
        return ToolResult.ok()

    async def code(next: Next) -> str:
        result = await breaker(call_of("read"), next)
        return "" if result.error is None else result.error.code

    async def tried() -> bool:
        try:
            return await code(crash) == "never"
        except RuntimeError:
            return True

    assert await tried()
    assert await code(hang) == "circuit_open"
    await eventually(tried)
    assert await code(hang) == "circuit_open"
    trying: list[asyncio.Future[str]] = []

    def entered_again() -> bool:
        if not entered.is_set() and all(each.done() for each in trying):
            trying.append(asyncio.ensure_future(code(hang)))
        return entered.is_set()

    await eventually(entered_again)
    assert await code(hang) == "circuit_open"
    trying[-1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying[-1]
    release.set()
    assert await code(hang) == ""


class _Gated:
    """Calls that end when the test says how, in the order in which they began."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self.begun: list[asyncio.Future[ToolResult]] = []

    async def begin(self, *, let_through: bool = True) -> asyncio.Task[ToolResult]:
        """Start a call; it gets as far as the tool, or is refused."""
        before = len(self.begun)
        task = asyncio.create_task(self._breaker(call_of("read"), self._run))
        await eventually(lambda: len(self.begun) > before or task.done())
        assert (len(self.begun) > before) is let_through
        return task

    async def _run(self, call: ToolCall) -> ToolResult:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]


GOOD, BAD, NEUTRAL = ToolResult.ok(), ToolResult.fail(ErrorInfo("tool_error")), ToolResult.fail(ErrorInfo("invalid_arguments"))


@pytest.mark.parametrize("late", [GOOD, BAD, NEUTRAL, None])
@pytest.mark.parametrize("state", ["open", "trying", "closed again"])
async def test_a_call_from_before_says_nothing_about_the_circuit(monkeypatch: pytest.MonkeyPatch, late: Any, state: str) -> None:
    """However it ends after the circuit opened, it neither closes it, nor opens it, nor lets a second try through."""
    now = 1000.0
    monkeypatch.setattr("toolbus.middleware.limits.time", SimpleNamespace(monotonic=lambda: now))
    calls = _Gated(CircuitBreaker(failures=1, cooldown=30))
    early, failing = await calls.begin(), await calls.begin()
    calls.begun[1].set_result(BAD)
    await failing
    if state != "open":
        now += 31
        await calls.begin()
    if state == "closed again":
        calls.begun[2].set_result(GOOD)
        await calls.begin()
    if late is None:
        early.cancel()
    else:
        calls.begun[0].set_result(late)
    await asyncio.wait([early])
    await calls.begin(let_through=state == "closed again")
    if state == "trying":
        calls.begun[2].set_result(GOOD)
        await eventually(calls.begun[2].done)
        await calls.begin()


async def test_of_many_calls_after_the_cooldown_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are refused until it has ended, and one that says nothing makes room for the next."""
    now = 1000.0
    monkeypatch.setattr("toolbus.middleware.limits.time", SimpleNamespace(monotonic=lambda: now))
    calls = _Gated(CircuitBreaker(failures=1, cooldown=30))
    failing = await calls.begin()
    calls.begun[0].set_result(BAD)
    await failing
    await calls.begin(let_through=False)
    now += 31
    for ending in (NEUTRAL, BAD, GOOD):
        trying = await calls.begin()
        for _ in range(5):
            await calls.begin(let_through=False)
        calls.begun[-1].set_result(ending)
        await trying
        if ending is BAD:
            await calls.begin(let_through=False)
            now += 31
    await calls.begin()
    await calls.begin()


async def test_errors_of_the_call_itself_open_no_circuit(place: Place) -> None:
    """Wrong arguments say nothing about a tool's health."""
    async with serving(place, CircuitBreaker(failures=1)), place.bus() as bus:
        await error_of(bus, "read", {"text": 7})
        await error_of(bus, "read", {"nonsense": 1})
        assert (await bus.call("read")).success
