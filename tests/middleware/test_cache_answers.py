"""The cache: what it keeps, for how long, and for whom."""

from __future__ import annotations

import pytest

from tests.contract import Place
from tests.middleware.guarded import call_of, error_of, runs, serving
from tests.servers import eventually
from toolbus import ToolResult
from toolbus.middleware import Cache, ToolCall

pytestmark = pytest.mark.anyio


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

    call = call_of("read")
    (await cache(call, answer)).data["list"].append(2)
    (await cache(call, answer)).data["list"].append(3)
    assert (await cache(call, answer)).data == {"list": [1]}
