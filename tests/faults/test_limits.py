"""Limits and metering between connections that are cut and servers that are full or gone."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolResult, Worker, tool
from toolbus.middleware import Metering, Next, Quota, RateLimit, ToolCall

pytestmark = pytest.mark.anyio


@tool(service="limited-faults", effect="read")
async def work(n: int) -> int:
    """Give a number back."""
    return n


async def test_limits_and_usage_survive_cut_connections(place: Place) -> None:
    """While every connection is killed again and again all calls within the limits are answered, and none goes uncounted."""
    around = [Metering(), RateLimit(10_000, per=1), Quota(10_000)]
    async with Worker(work, settings=place.settings, middleware=around) as worker, place.bus() as bus:
        with redis.Redis.from_url(place.settings.url) as client:

            async def cut() -> None:
                for each in client.client_list():
                    if each["id"] != str(client.client_id()):
                        client.client_kill_filter(_id=each["id"])

            for _ in range(3):
                calls = [asyncio.ensure_future(bus.call("work", {"n": n})) for n in range(50)]
                await eventually(lambda: worker.started > 0)
                await cut()
                assert all([(await call).success for call in calls])
            count = sum(int(client.hget(key, "used") or 0) for key in client.scan_iter(f"tb:{{{place.settings.namespace}}}:quota:*"))  # type: ignore[arg-type]
        # A use whose answer was lost with its connection may count twice.
        assert count >= 150

        async def counted() -> bool:
            return sum(row.calls for row in await bus.usage()) >= 150

        await eventually(counted, timeout=15)


async def test_limits_hold_while_the_server_is_full(place: Place) -> None:
    """Without memory the counts still go on: what a limit refuses it refuses, and what it allows is answered."""
    settings, full = place.settings, asyncio.Event()

    async def wait_until_full(call: ToolCall, next: Next) -> ToolResult:
        await full.wait()
        return await next(call)

    around = [wait_until_full, Metering(), RateLimit(2, per=600), Quota(2)]
    async with Worker(work, settings=settings, middleware=around) as worker, place.bus() as bus:
        calls = [asyncio.ensure_future(bus.call("work", {"n": n})) for n in range(3)]
        with redis.Redis.from_url(settings.url) as client:
            await eventually(lambda: worker.started == 3)
            client.config_set("maxmemory", 1)
            full.set()
            try:
                errors = [(await call).error for call in calls]
            finally:
                client.config_set("maxmemory", 0)
        assert sum(row.calls for row in await bus.usage()) == 3
    assert [error.type for error in errors if error is not None] == ["rate_limited"]
