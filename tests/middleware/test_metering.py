"""Metering: usage by user and tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import pytest

from tests.contract import Place
from tests.middleware.guarded import error_of, serving
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.middleware import Metering, RateLimit

pytestmark = pytest.mark.anyio


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
        await error_of(bus, "slow", timeout=0.5, user="al")

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
    monkeypatch.setattr("toolbus.bus.broker.held.limits.MOST_PAIRS", 3)
    async with serving(place, Metering()), place.bus() as bus:
        for number in range(6):
            await bus.call("read", user=f"user-{number}")

        async def counted() -> bool:
            return sum(row.calls for row in await bus.usage()) == 6

        await eventually(counted)
        rows = await bus.usage()
    assert [(row.user, row.calls) for row in rows] == [("*", 3), ("user-0", 1), ("user-1", 1), ("user-2", 1)]
