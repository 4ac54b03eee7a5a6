"""Sticky sessions, over every transport: their calls go to one worker, as long as it is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract import Place
from tests.notebook import StickyNotes
from tests.servers import eventually
from toolbus import Session, tool

pytestmark = pytest.mark.anyio


# -- sticky -------------------------------------------------------------------------------------------


async def test_calls_of_a_session_go_to_one_worker(place: Place) -> None:
    """A worker that takes a call passes it to the worker that has the session; calls without session and user run anywhere."""
    log: list[Any] = []
    services = [StickyNotes(str(number), log) for number in range(3)]
    workers = [place.worker(service, concurrency=10) for service in services]
    async with workers[0], workers[1], workers[2], place.bus() as bus:
        await bus.wait_for_tool("note")

        async def converse(session: str) -> list[str | None]:
            return [(await bus.call("note", {"text": "x"}, user="ann", session=session)).output for _ in range(6)]

        answers = await asyncio.gather(*(converse(f"s{number}") for number in range(30)))
        for said in answers:
            worker = str(said[0]).partition(" ")[0]
            assert said == [f"{worker} {count}" for count in range(1, 7)]
        assert len({str(said[0])[0] for said in answers}) == 3, "each worker got some sessions"
        assert sum(sum(service.new) for service in services) == 30
        results = await asyncio.gather(*(bus.call("note", {"text": "x"}) for _ in range(30)))
        assert all(result.success for result in results)


async def test_many_calls_of_a_session_at_once_go_to_one_worker(place: Place) -> None:
    """Also when it is new and several workers take its first calls at the same time."""
    services = [StickyNotes(str(number)) for number in range(3)]
    async with place.worker(services[0]), place.worker(services[1]), place.serving(services[2]) as bus:
        for session in range(10):
            results = await asyncio.gather(*(bus.call("note", {"text": "x"}, session=f"s{session}") for _ in range(20)))
            assert len({str(result.output).partition(" ")[0] for result in results}) == 1
            assert {result.meta.attempts for result in results} == {1}


async def test_a_full_worker_is_waited_for(place: Place) -> None:
    """Calls of its sessions run when it has a slot again, and not elsewhere."""
    services = [StickyNotes(str(number)) for number in range(2)]
    async with place.worker(services[0], concurrency=2), place.bus() as bus:
        await bus.wait_for_tool("note")
        assert (await bus.call("note", {"text": "x"}, session="s")).output == "0 1"
        held = [asyncio.create_task(bus.call("wait", session="s")) for _ in range(2)]
        await eventually(lambda: services[0].running == 2)
        async with place.worker(services[1]):
            waiting = [asyncio.create_task(bus.call("note", {"text": "x"}, session="s")) for _ in range(5)]
            assert (await bus.call("note", {"text": "x"}, session="other")).output == "1 1"
            assert not any(task.done() for task in waiting)
            services[0].go.set()
            outputs = {(await task).output for task in waiting}
            assert outputs == {f"0 {number}" for number in range(2, 7)}
            assert {(await task).output for task in held} == {"0"}


async def test_sessions_of_a_drained_worker_start_anew_elsewhere(place: Place) -> None:
    """Calls that waited for the worker are taken by another at once, in a session that is new there; one that had begun counts on."""
    first, second = StickyNotes("first"), StickyNotes("second")
    leaving = place.worker(first, concurrency=1, grace=0.2)
    async with leaving, place.bus() as bus:
        await bus.wait_for_tool("note")
        assert (await bus.call("note", {"text": "x"}, session="s")).output == "first 1"
        held = asyncio.create_task(bus.call("wait", session="s"))
        await eventually(lambda: first.running == 1)
        async with place.worker(second):
            waiting = asyncio.create_task(bus.call("note", {"text": "x"}, session="s"))
            assert (await bus.call("note", {"text": "x"}, session="other")).output == "second 1"
            await leaving.drain()
            result = await waiting
            assert (result.output, result.meta.attempts) == ("second 1", 1)
            second.go.set()
            result = await held
            assert (result.output, result.meta.attempts) == ("second", 2)
            assert first.cleaned == [Session("", "s"), None]


async def test_a_call_that_waits_for_its_worker_can_be_cancelled_and_expire(place: Place) -> None:
    """Cancelled or expired it never runs; for `once` work that is certain, so its caller is not left in doubt."""
    ran: list[str] = []

    class Once(StickyNotes):
        """Has effects."""

        @tool(effect="once")
        async def pay(self) -> str:
            """Have an effect."""
            ran.append(self.name)
            return "paid"

    first, second = Once("first"), Once("second")
    async with place.worker(first, concurrency=1), place.bus() as bus:
        await bus.wait_for_tool("pay")
        held = asyncio.create_task(bus.call("wait", session="s"))
        await eventually(lambda: first.running == 1)
        async with place.worker(second):
            late = asyncio.create_task(bus.call("pay", session="s", timeout=0.6))
            cancelled = asyncio.create_task(bus.call("pay", session="s"))
            assert (await bus.call("note", {"text": "x"}, session="other")).output == "second 1"
            cancelled.cancel()
            error = (await late).error
            assert error is not None
            assert error.type == "deadline_exceeded"
            first.go.set()
            assert (await held).success
            assert (await bus.call("note", {"text": "x"}, session="s")).output == "first 1"
    assert ran == []


async def test_a_closed_session_is_free_for_every_worker(place: Place) -> None:
    """Its owner cleans up and gives it up; nobody keeps anything of it."""
    services = [StickyNotes(str(number)) for number in range(2)]
    async with place.worker(services[0]), place.serving(services[1]) as bus:
        for _ in range(20):
            async with bus.session("s", user="ann") as view:
                said = [(await view.call("note", {"text": "x"})).output for _ in range(3)]
                assert said in (["0 1", "0 2", "0 3"], ["1 1", "1 2", "1 3"])
        await eventually(lambda: sum(len(service.cleaned) for service in services) == 20)
        assert [service.notes for service in services] == [{}, {}]


async def test_a_user_without_a_session_has_one_of_its_own(place: Place) -> None:
    """Calls that name a user and no session go to one worker as well."""
    services = [StickyNotes(str(number)) for number in range(3)]
    async with place.worker(services[0]), place.worker(services[1]), place.serving(services[2]) as bus:
        for user in ("ann", "bob", "cid", "dan"):
            said = [(await bus.call("note", {"text": "x"}, user=user)).output for _ in range(5)]
            worker = str(said[0]).partition(" ")[0]
            assert said == [f"{worker} {count}" for count in range(1, 6)]
