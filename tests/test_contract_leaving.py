"""Sessions of a worker that leaves while calls of theirs run, over every transport: what those calls change is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.contract import Place
from tests.servers import eventually
from tests.test_contract_lost_sessions import told
from tests.test_contract_snapshots import Kept, ready
from toolbus import ToolService, Worker, invocation, tool
from toolbus.bus.broker.admin import Admin

pytestmark = pytest.mark.anyio


def held(worker: Worker) -> int:
    """Return how many calls a worker has."""
    return worker.statistics()["held"]


@asynccontextmanager
async def leaving(place: Place, worker: Worker, first: Kept) -> AsyncIterator[Worker]:
    """Another worker, which takes what comes while the first one, where a call runs, leaves."""
    async with place.worker(Kept()) as second, place.bus() as other:
        await other.wait_for_tool("put")
        drain = asyncio.create_task(worker.drain())
        async with Admin(place.settings) as admin:

            async def signed_off() -> bool:
                return all(each.workers <= 1 for each in await admin.services())

            # Until the server knows it, calls of the first worker's sessions are handed over to it.
            await eventually(signed_off)
        assert told(await other.call("put", {"what": "x"}, session="other")) == "x"
        yield second
        first.go.set()
        await drain


async def test_the_last_call_of_a_leaving_worker_is_kept(place: Place) -> None:
    """The worker that has its session by then waits for it, and goes on from what it changed."""
    first = Kept()
    worker = place.worker(first, grace=30.0)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        first.go.clear()
        running = asyncio.create_task(view.call("hold", {"what": "b"}))
        await eventually(lambda: first.attempts)
        async with leaving(place, worker, first) as second:
            waiting = [asyncio.create_task(view.call("put", {"what": what})) for what in "cd"]
            await eventually(lambda: held(second) == 2)
            first.go.set()
            assert [told(await call) for call in (running, *waiting)] == ["a b", "a b c", "a b c d"]


async def test_a_call_beside_the_others_waits_for_a_leaving_worker_too(place: Place) -> None:
    """It begins the session at the next worker, and not with a state that the last call at the old one still changes."""
    first = Kept()
    worker = place.worker(first, grace=30.0)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        first.go.clear()
        running = asyncio.create_task(view.call("hold", {"what": "b"}))
        await eventually(lambda: first.attempts)
        async with leaving(place, worker, first) as second:
            looks = [asyncio.create_task(view.call("look")) for _ in range(3)]
            await eventually(lambda: held(second) == 3 or any(look.done() for look in looks))
            first.go.set()
            assert told(await running) == "a b"
            assert {told(await look) for look in looks} == {"a b"}
            assert told(await view.call("put", {"what": "c"})) == "a b c"


class Outer(ToolService):
    """Changes the basket of its own session by a nested call."""

    id = "outer"

    @tool(effect="idempotent")
    async def through(self, what: str) -> str:
        """Put something in, and hold on."""
        result = await invocation().call("hold", {"what": what})
        return told(result)


async def test_what_a_nested_call_changes_is_not_lost_silently(place: Place) -> None:
    """It has no place in the order of its session, which another worker goes on with: its caller is told that its change is lost."""
    first = Kept()
    worker = place.worker(first, grace=30.0)
    async with place.worker(Outer()), worker, place.bus() as bus:
        view = await ready(bus)
        await bus.wait_for_tool("through")
        first.go.clear()
        running = asyncio.create_task(view.call("through", {"what": "b"}))
        await eventually(lambda: first.attempts)
        async with leaving(place, worker, first):
            assert told(await view.call("put", {"what": "c"})) == "a c"
            first.go.set()
            assert told(await running) == "session_moved"
            assert told(await view.call("put", {"what": "d"})) == "a c d"
