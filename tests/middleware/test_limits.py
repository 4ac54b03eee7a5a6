"""Rates and quotas, which all workers share."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from tests.contract import Place
from tests.middleware.guarded import call_of, error_of, serving
from tests.servers import eventually
from toolbus import ToolBus, ToolResult
from toolbus.middleware import Quota, RateLimit, ToolCall

pytestmark = pytest.mark.anyio


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


async def test_an_idle_limit_leaves_no_key(place: Place) -> None:
    """A limit's keys live no longer than they matter."""
    limits = [RateLimit(5, per=0.3), Quota(5, per=0.3)]
    settings = place.settings
    async with serving(place, *limits), place.bus() as bus:
        assert (await bus.call("read")).success
    with redis.Redis.from_url(settings.url) as client:
        await eventually(lambda: [*client.scan_iter(f"tb:{{{settings.namespace}}}:quota:*"), *client.scan_iter("tb:*:rate:*")] == [])


async def test_a_limit_that_can_not_be_asked_refuses(place: Place) -> None:
    """When the counts can't be had the call fails as unavailable instead of passing uncounted."""

    class Gone:
        async def spend(self, name: str, limit: int, period: float) -> float:
            from toolbus.bus.values.results import BrokerUnavailable

            raise BrokerUnavailable("the connection is closed")

        use = spend

    async def passed(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    for limit in (RateLimit(1), Quota(1)):
        result = await limit(call_of("read", tallies=Gone()), passed)
        assert result.error is not None
        assert (result.error.type, result.error.retryable) == ("unavailable", True)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("limit", [1, 5])
async def test_a_rate_survives_a_clock_that_is_set_back(place: Place, limit: int) -> None:
    """A use that was counted an hour later keeps nobody out: after one interval calls pass again, one for each interval."""
    settings = place.settings
    async with serving(place, RateLimit(limit, per=0.5 * limit)), place.bus() as bus:
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


async def test_a_quota_survives_a_clock_that_is_set_back(place: Place) -> None:
    """Calls that were counted in a later period count in none before it."""
    settings = place.settings
    async with serving(place, Quota(1, per=3600)), place.bus() as bus:
        assert (await bus.call("read")).success
        with redis.Redis.from_url(settings.url, decode_responses=True) as client:
            (key,) = client.scan_iter(f"tb:{{{settings.namespace}}}:quota:*")
            client.hincrby(key, "period", 1)
        assert (await bus.call("read")).success
        assert (await error_of(bus, "read")).code == "quota"
