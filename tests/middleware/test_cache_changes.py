"""The cache: changes that make it forget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from tests.contract import Place
from tests.middleware.cached import call_of, late, light, power, switched
from tests.tiers import pairs
from toolbus import ConfigurationError, ErrorInfo, ToolBus, ToolResult, Worker
from toolbus.bus.values.results import ErrorType
from toolbus.middleware import Answers, Cache, ToolCall

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_a_switch_is_switched_each_time_and_seen_at_once(place: Place, side: str) -> None:
    """An idempotent call is never answered from an earlier one, and what is read after it is read anew."""
    cache = Cache()
    worker = Worker([light], settings=place.settings, middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("light")
        for on in (True, False, True):
            assert (await bus.call("switch", {"on": on})).output == "switched"
            assert power["on"] is on
            assert [(await bus.call("light")).data for _ in range(2)] == [on, on]


async def test_a_reading_that_a_change_overtook_is_not_kept() -> None:
    """It began before the change ended, so it may tell of the time before."""
    cache, reading, go = Cache(), call_of("light", effect="read"), asyncio.Event()

    async def slow(call: ToolCall) -> ToolResult:
        await go.wait()
        return ToolResult.ok("off")

    async def quick(call: ToolCall) -> ToolResult:
        return ToolResult.ok("on")

    early = asyncio.create_task(cache(reading, slow))
    await asyncio.sleep(0)
    await cache(call_of("switch", effect="idempotent"), quick)
    go.set()
    assert (await early).data == "off"
    assert (await cache(reading, quick)).data == "on"


@pytest.mark.parametrize("raises", [asyncio.CancelledError, RuntimeError])
async def test_a_change_that_did_not_end_well_counts_as_one(raises: type[BaseException]) -> None:
    """A call that was cancelled, or failed, may have changed something all the same."""
    cache, reading = Cache(), call_of("light", effect="read")
    answers = iter(("before", "after"))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(answers))

    async def fail(call: ToolCall) -> ToolResult:
        raise raises

    assert (await cache(reading, read)).data == "before"
    with pytest.raises(raises):
        await cache(call_of("switch"), fail)
    assert (await cache(reading, read)).data == "after"


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_a_change_that_comes_after_its_call_has_ended_is_seen(place: Place, side: str) -> None:
    """A thread that outlives its call's timeout may write later, so what was read between is not told again."""
    cache = Cache()
    worker = Worker([light], settings=place.settings, middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("light")
        try:
            error = (await bus.call("switch_late", timeout=1.0)).error
            assert error is not None
            assert error.type == "outcome_unknown"
            assert (await bus.call("light")).data is False
        finally:
            late.set()
        assert await asyncio.to_thread(switched.wait, 60)
        assert (await bus.call("light")).data is True


@pytest.mark.parametrize("type_", get_args(ErrorType))
async def test_nothing_is_kept_while_a_change_may_go_on(monkeypatch: pytest.MonkeyPatch, type_: ErrorType) -> None:
    """After a change whose handler may go on its service, and no other, is read anew for as long as an answer is kept."""
    clock_ = _Clock(monkeypatch)
    cache, runs = Cache(ttl=60), iter(range(100))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(runs))

    async def fail(call: ToolCall) -> ToolResult:
        return ToolResult.fail(ErrorInfo(type_))

    async def differ(service: str = "cached") -> bool:
        first, second = [(await cache(call_of("light", effect="read", service=service), read)).data for _ in range(2)]
        return bool(first != second)

    goes_on = type_ in {"outcome_unknown", "deadline_exceeded", "cancelled", "slow_consumer"}
    await cache(call_of("switch"), fail)
    clock_.now += 59
    assert await differ() is goes_on
    await cache(call_of("switch"), read)
    assert await differ() is goes_on
    assert not await differ("another")
    clock_.now += 1.5
    assert not await differ()


@pytest.mark.parametrize("raises", [asyncio.CancelledError, RuntimeError])
async def test_nothing_is_kept_after_a_change_that_was_given_up(monkeypatch: pytest.MonkeyPatch, raises: type[BaseException]) -> None:
    """A call that was cancelled from outside, or broke, may go on; with too many of them, all services are read anew."""
    monkeypatch.setattr("toolbus.middleware.cache._MOST_CHANGED", 3)
    clock_ = _Clock(monkeypatch)
    cache, runs = Cache(ttl=60), iter(range(100))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(runs))

    async def fail(call: ToolCall) -> ToolResult:
        raise raises

    async def told() -> list[Any]:
        return [(await cache(call_of("light", effect="read", service="service 0"), read)).data for _ in range(2)]

    for number in range(5):
        with pytest.raises(raises):
            await cache(call_of("switch", service=f"service {number}"), fail)
        first, second = await told()
        assert first != second
    clock_.now += 60.5
    first, second = await told()
    assert first == second


async def test_many_services_that_change_are_forgotten_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The knowledge of changes is bounded; beyond it nothing stale comes back."""
    monkeypatch.setattr("toolbus.middleware.cache._MOST_CHANGED", 3)
    cache, runs = Cache(), 0

    async def read(call: ToolCall) -> ToolResult:
        nonlocal runs
        runs += 1
        return ToolResult.ok(str(runs))

    for number in range(10):
        told = (await cache(call_of("light", effect="read"), read)).data
        await cache(call_of("switch", service=f"service {number}"), read)
        again = (await cache(call_of("light", effect="read"), read)).data
        await cache(call_of("switch"), read)
        assert (await cache(call_of("light", effect="read"), read)).data not in {told, again}


async def test_a_call_after_a_change_does_not_join_one_from_before() -> None:
    """A call that runs since before the change may tell of the time before it."""
    cache, reading, answers, go = Cache(), call_of("light", effect="read"), iter(("before", "after")), asyncio.Event()
    begun = asyncio.Event()

    async def read(call: ToolCall) -> ToolResult:
        answer = next(answers)
        if answer == "before":
            begun.set()
            await go.wait()
        return ToolResult.ok(answer)

    async def change(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    early = asyncio.create_task(cache(reading, read))
    await begun.wait()
    await cache(call_of("switch"), change)
    assert (await cache(reading, read)).data == "after"
    go.set()
    assert (await early).data == "before"
    assert (await cache(reading, read)).data == "after"


CALLS = [(service, name, text, user) for service in ("s1", "s2") for name in ("t1", "t2") for text in ("a", "b") for user in ("al", "bo")]


@pytest.mark.parametrize(
    ("service", "name", "arguments", "by", "how"),
    pairs(["", "s1"], ["", "t1"], [None, {"text": "a"}], [None, "al"], ["invalidate", "a call"]),
)
async def test_only_the_answers_that_changed_are_forgotten(service: str, name: str, arguments: Any, by: str | None, how: str) -> None:
    """They are told by service, tool, arguments and whose they are; what is not told is any."""
    gone = Answers(service=service, tool=name, arguments=arguments, by=by)
    cache, ran = Cache(by=lambda call: call.user, invalidates=lambda call: [gone]), set()

    async def told(*which: str) -> None:
        async def read(call: ToolCall) -> ToolResult:
            ran.add(which)
            return ToolResult.ok()

        of, tool_name, text, user = which
        call = msgspec.structs.replace(call_of(tool_name, effect="read", service=of), arguments={"text": text}, user=user)
        await cache(call, read)

    async def change(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    for each in CALLS:
        await told(*each)
    assert ran == set(CALLS)
    ran.clear()
    if how == "a call":
        await cache(call_of("switch", service="s9"), change)
    else:
        cache.invalidate(name, arguments, service=service, by=by)
    for each in CALLS:
        await told(*each)
    assert ran == {
        each
        for each in CALLS
        if each[0] == (service or each[0])
        and each[1] == (name or each[1])
        and each[2] == (arguments or {"text": each[2]})["text"]
        and each[3] == (by or each[3])
    }


async def test_a_wrong_change_fails_before_anything_is_changed() -> None:
    """Afterwards it would be too late to say so."""
    cache = Cache(invalidates=lambda call: [Answers(arguments={"odd": object()})])

    async def change(call: ToolCall) -> ToolResult:
        pytest.fail("it ran")

    with pytest.raises(TypeError):
        await cache(call_of("switch"), change)
    with pytest.raises(ConfigurationError, match="JSON"):
        cache.invalidate("light", {"odd": object()})


class _Clock:
    """The cache's time, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("toolbus.middleware.cache.time", SimpleNamespace(monotonic=lambda: self.now))
