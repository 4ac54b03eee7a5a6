"""Cache, rate limit, quota, circuit breaker, timeout and metering, over every transport."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ErrorInfo, ToolBus, ToolError, ToolResult, Worker, invocation, tool
from toolbus.middleware import Cache, CircuitBreaker, Metering, Middleware, Next, Quota, RateLimit, Timeout, ToolCall

pytestmark = pytest.mark.anyio

runs: list[str] = []


@tool(service="limited", effect="read")
async def read(text: str = "", fail: bool = False) -> dict[str, Any]:
    """Read."""
    runs.append(text)
    if fail:
        raise ToolError("not now", retryable=True)
    return {"text": text, "run": len(runs)}


@tool(service="limited")
async def write(text: str = "") -> dict[str, Any]:
    """Write."""
    runs.append(text)
    return {"run": len(runs)}


@tool(service="limited", effect="once")
async def slow_once() -> str:
    """Take for ever."""
    await asyncio.Event().wait()
    return ""


@tool(service="limited", effect="read")
async def slow(raises: bool = False) -> str:
    """Take for ever."""
    if raises:
        raise TimeoutError("my own")
    await asyncio.Event().wait()
    return ""


heard = threading.Event()


@tool(service="limited", effect="read")
async def trickle() -> AsyncIterator[str]:
    """Say a little and hang."""
    yield "é"
    yield "é"
    await asyncio.Event().wait()


@tool(service="limited", effect="read")
def slow_thread() -> str:
    """Take until told."""
    while not invocation().cancelled:
        time.sleep(0.01)
    heard.set()
    return ""


def serving(place: Place, *middleware: Middleware, **changes: Any) -> Worker:
    """A worker with every tool of this module and middleware."""
    return Worker([read], settings=place.with_(**changes), middleware=middleware)


async def error_of(bus: ToolBus, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """The error of a call that must fail."""
    result = await bus.call(name, arguments, **options)
    assert result.error is not None
    return result.error


# -- cache --------------------------------------------------------------------------------------------


async def test_the_cache_answers_equal_calls_of_tools_that_read(place: Place) -> None:
    """Equal arguments of one user are answered once; other users, other arguments and tools with effects are run."""
    cache = Cache(ttl=60)
    async with serving(place, cache), place.bus() as bus:
        first = await bus.call("read", {"text": "a"}, user="al")
        assert (await bus.call("read", {"text": "a"}, user="al")).data == first.data
        assert (await bus.call("read", {"text": "b"}, user="al")).data != first.data
        assert (await bus.call("read", {"text": "a"}, user="bo")).data != first.data
        one, two = await bus.call("write", user="al"), await bus.call("write", user="al")
        assert one.data != two.data
        assert cache.statistics()["kept"] == 3


async def test_the_cache_never_keeps_failures(place: Place) -> None:
    """A call that failed is run again."""
    cache = Cache()
    async with serving(place, cache), place.bus() as bus:
        before = len(runs)
        for _ in range(2):
            await error_of(bus, "read", {"fail": True})
        assert (len(runs) - before, cache.statistics()) == (2, {"kept": 0, "bytes": 0})


async def test_the_cache_forgets_after_its_time_and_beyond_its_size(place: Place) -> None:
    """An answer is gone after the ttl; beyond the size what was not asked for longest goes first, and large answers are not kept."""
    short, small = Cache(ttl=0.05), Cache(most_bytes=3000)
    async with serving(place, short), place.bus() as bus:
        first = await bus.call("read", {"text": "ttl"})

        async def another() -> bool:
            return (await bus.call("read", {"text": "ttl"})).data != first.data

        await eventually(another)
    async with serving(place, small), place.bus() as bus:
        kept = await bus.call("read", {"text": "kept"})
        for number in range(40):
            await bus.call("read", {"text": str(number)})
            assert (await bus.call("read", {"text": "kept"})).data == kept.data
        assert 0 < small.statistics()["bytes"] <= 3000
        before = small.statistics()
        await bus.call("read", {"text": "x" * 3000})
        assert small.statistics() == before


async def test_nobody_changes_what_the_cache_holds() -> None:
    """Each answer has data of its own."""
    cache = Cache()

    async def answer(call: ToolCall) -> ToolResult:
        return ToolResult.ok({"list": [1]})

    call = _call("read")
    (await cache(call, answer)).data["list"].append(2)
    (await cache(call, answer)).data["list"].append(3)
    assert (await cache(call, answer)).data == {"list": [1]}


# -- limits -------------------------------------------------------------------------------------------


async def test_a_rate_is_shared_by_all_workers_and_told_apart_by_user_and_tool(place: Place) -> None:
    """Calls beyond the limit fail with rate_limited and say when to try again; other users and tools are not touched."""
    limit = [RateLimit(3, per=60)]
    async with serving(place, *limit), serving(place, RateLimit(3, per=60)), place.bus() as bus:
        results = await asyncio.gather(*(bus.call("read", user="al") for _ in range(8)))
        errors = [result.error for result in results if result.error is not None]
        assert len(errors) == 5
        for error in errors:
            assert (error.type, error.code, error.retryable) == ("rate_limited", "rate_limit", True)
            assert error.retry_after is not None
            assert 0 < error.retry_after <= 60
        assert (await bus.call("read", user="bo")).success
        assert (await bus.call("write", user="al")).success


async def test_a_rate_is_refilled(place: Place) -> None:
    """After its retry_after a call passes again."""
    async with serving(place, RateLimit(1, per=0.2)), place.bus() as bus:
        assert (await bus.call("read")).success
        error = await error_of(bus, "read")
        assert 0 < error.retry_after <= 0.2

        async def passes() -> bool:
            return (await bus.call("read")).success

        await eventually(passes)


async def test_a_quota_counts_whole_periods(place: Place) -> None:
    """A quota refuses the rest of its period, and says when the next one starts; limits of one name share their counts."""

    def total(call: ToolCall) -> str:
        return call.user

    long = Quota(2, by=total, name="all calls")
    async with serving(place, long), ToolBus(settings=place.settings, middleware=[Quota(2, by=total, name="all calls")]) as bus:
        # Counted at the caller and in the worker: one call uses both.
        assert (await bus.call("read", user="al")).success
        error = await error_of(bus, "write", user="al")
        assert (error.type, error.code) == ("rate_limited", "quota")
        assert 0 < error.retry_after <= 86_400
    async with serving(place, Quota(1, per=0.3)), place.bus() as bus:

        async def passes() -> bool:
            return (await bus.call("read")).success

        await eventually(passes)
        await eventually(passes)


async def test_an_idle_limit_leaves_no_key(redis_place: Place) -> None:
    """A limit's keys live no longer than they matter."""
    limits = [RateLimit(5, per=0.3), Quota(5, per=0.3)]
    settings = redis_place.settings
    async with serving(redis_place, *limits), redis_place.bus() as bus:
        assert (await bus.call("read")).success
    with redis.Redis.from_url(settings.url) as client:
        await eventually(lambda: [*client.scan_iter(f"tb:{{{settings.namespace}}}:quota:*"), *client.scan_iter("tb:*:rate:*")] == [])


async def test_a_limit_that_can_not_be_asked_refuses(place: Place) -> None:
    """When the counts can't be had the call fails as unavailable instead of passing uncounted."""

    class Gone:
        async def spend(self, name: str, limit: int, period: float) -> float:
            from toolbus.results import BrokerUnavailable

            raise BrokerUnavailable("the connection is closed")

        use = spend

    async def passed(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    for limit in (RateLimit(1), Quota(1)):
        result = await limit(_call("read", tallies=Gone()), passed)
        assert result.error is not None
        assert (result.error.type, result.error.retryable) == ("unavailable", True)


@pytest.mark.parametrize("limit", [1, 5])
async def test_a_rate_survives_a_clock_that_is_set_back(redis_place: Place, limit: int) -> None:
    """A use that was counted an hour later keeps nobody out: after one interval calls pass again, one for each interval."""
    settings = redis_place.settings
    async with serving(redis_place, RateLimit(limit, per=0.5 * limit)), redis_place.bus() as bus:
        assert (await bus.call("read")).success
        with redis.Redis.from_url(settings.url, decode_responses=True) as client:
            (key,) = client.scan_iter(f"tb:{{{settings.namespace}}}:rate:*")
            client.set(key, float(str(client.get(key))) + 3_600_000, px=3_600_000)
        error = await error_of(bus, "read")
        assert 0 < error.retry_after <= 0.5
        results: list[bool] = []

        async def passes() -> bool:
            results.append((await bus.call("read")).success)
            return sum(results) == 3

        began = time.monotonic()
        await eventually(passes, timeout=20.0)
        assert time.monotonic() - began >= 0.99


async def test_a_quota_survives_a_clock_that_is_set_back(redis_place: Place) -> None:
    """Calls that were counted in a later period count in none before it."""
    settings = redis_place.settings
    async with serving(redis_place, Quota(1, per=3600)), redis_place.bus() as bus:
        assert (await bus.call("read")).success
        with redis.Redis.from_url(settings.url, decode_responses=True) as client:
            (key,) = client.scan_iter(f"tb:{{{settings.namespace}}}:quota:*")
            client.hincrby(key, "period", 1)
        assert (await bus.call("read")).success
        assert (await error_of(bus, "read")).code == "quota"


# -- breaker ------------------------------------------------------------------------------------------


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
        result = await breaker(_call("read"), next)
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
        task = asyncio.create_task(self._breaker(_call("read"), self._run))
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
    monkeypatch.setattr("toolbus.middleware.breaker.time", SimpleNamespace(monotonic=lambda: now))
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
    monkeypatch.setattr("toolbus.middleware.breaker.time", SimpleNamespace(monotonic=lambda: now))
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


# -- timeout ------------------------------------------------------------------------------------------


async def test_a_timeout_cancels_the_handler(place: Place) -> None:
    """A handler over its time ends deadline_exceeded, outcome_unknown when it must not happen twice; its own TimeoutError stays its own."""
    async with serving(place, Timeout(0.1)), place.bus() as bus:
        error = await error_of(bus, "slow")
        assert (error.type, error.code) == ("deadline_exceeded", "timeout")
        assert (await error_of(bus, "slow_once")).type == "outcome_unknown"
        assert (await error_of(bus, "slow", {"raises": True})).code == "TimeoutError"
        assert (await bus.call("read")).success


async def test_a_timeout_tells_a_handler_in_a_thread(place: Place) -> None:
    """A thread can't be stopped, so it hears that nobody waits any more."""
    heard.clear()
    async with serving(place, Timeout(0.1)), place.bus() as bus:
        assert (await error_of(bus, "slow_thread")).type == "deadline_exceeded"
        await eventually(heard.is_set)


async def test_a_timeout_at_the_caller_cancels_the_call(place: Place) -> None:
    """Around a call it ends the wait, and the worker hears of it."""
    async with serving(place) as worker, ToolBus(settings=place.settings, middleware=[Timeout(0.2)]) as bus:
        assert (await error_of(bus, "slow")).type == "deadline_exceeded"
        await eventually(lambda: worker.statistics()["running"] == 0)


# -- metering -----------------------------------------------------------------------------------------


async def test_usage_is_counted_by_user_and_tool_for_all_workers(place: Place) -> None:
    """Calls, errors, milliseconds and bytes add up over workers, also those of calls that middleware further in refused."""
    within = RateLimit(3, per=60, by=lambda call: call.user + call.tool, name="metered")
    async with serving(place, Metering(), within), serving(place, Metering(), within), place.bus() as bus:
        await asyncio.gather(*(bus.call("read", {"text": "é"}, user="al") for _ in range(5)))
        await bus.call("read", {"fail": True}, user="bo")
        await bus.call("write", user="{odd} [user]")

        async def counted() -> bool:
            return sum(row.calls for row in await bus.usage()) == 7

        await eventually(counted)
        found = {(row.user, row.tool): row for row in await bus.usage()}
        assert [(key, row.calls, row.errors) for key, row in found.items()] == [
            (("al", "read"), 5, 2),
            (("bo", "read"), 1, 1),
            (("{odd} [user]", "write"), 1, 0),
        ]
        assert found["al", "read"].bytes >= 3 * len(b'{"text":"x","run":1}')
        assert await bus.usage(days=7) == list(found.values())


async def test_a_cancelled_call_counts_as_an_error(place: Place) -> None:
    """A call that is cancelled counts as an error, with the milliseconds that it took until then."""
    async with serving(place, Metering()), place.bus() as bus:
        await error_of(bus, "slow", timeout=0.2, user="al")

        async def counted() -> Any:
            return await bus.usage()

        (row,) = await eventually(counted)
        assert (row.user, row.tool, row.calls, row.errors) == ("al", "slow", 1, 1)
        assert row.ms >= 100


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_a_cancelled_stream_counts_what_was_delivered(place: Place, side: str) -> None:
    """Its bytes cost what they cost, whether anybody wanted the rest or not."""
    metering = [Metering()]
    worker = serving(place, *(metering if side == "worker" else []))
    async with worker, ToolBus(settings=place.settings, middleware=metering if side == "bus" else []) as bus:
        await bus.wait_for_tool("trickle")
        async with bus.stream("trickle", user="al") as call:
            assert "".join([text async for text in _first(call, 2)]) == "éé"

        async def counted() -> Any:
            return await bus.usage()

        (row,) = await eventually(counted)
        assert (row.user, row.tool, row.calls, row.errors, row.bytes) == ("al", "trickle", 1, 1, 4)


async def _first(texts: AsyncIterable[str], count: int) -> AsyncIterator[str]:
    """Yield the first so many characters."""
    seen = 0
    async for text in texts:
        yield text
        seen += len(text)
        if seen >= count:
            return


async def test_a_crowd_of_users_is_counted_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a day's bound of users and tools further ones share one line, so that no crowd fills the server."""
    for module in ("limits.tallies", "memory.tallies"):
        monkeypatch.setattr(f"toolbus.broker.{module}.MOST_PAIRS", 3)
    async with serving(place, Metering()), place.bus() as bus:
        for number in range(6):
            await bus.call("read", user=f"user-{number}")

        async def counted() -> bool:
            return sum(row.calls for row in await bus.usage()) == 6

        await eventually(counted)
        rows = await bus.usage()
    assert [(row.user, row.calls) for row in rows] == [("*", 3), ("user-0", 1), ("user-1", 1), ("user-2", 1)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cache(ttl=0),
        lambda: Cache(most_bytes=0),
        lambda: RateLimit(0),
        lambda: RateLimit(1, per=0),
        lambda: Quota(-1),
        lambda: CircuitBreaker(failures=0),
        lambda: CircuitBreaker(cooldown=-1),
        lambda: Timeout(0),
        lambda: Timeout(float("inf")),
    ],
)
def test_values_out_of_range_are_refused_at_once(make: Any) -> None:
    """A wrong value is a clear error where it is written."""
    with pytest.raises(ConfigurationError):
        make()


def _call(name: str, tallies: Any = None) -> ToolCall:
    return ToolCall(
        id="1", tool=name, service="limited", user="", session="", arguments={}, config={}, effect="read", side="handler", attempt=1,
        tallies=tallies,
    )  # fmt: skip
