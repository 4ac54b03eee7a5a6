"""Services that are added to a worker that serves, and withdrawn from it, on both transports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, Retry, ToolError, ToolService, Worker
from toolbus.bus.values.results import RegistrationRefused

pytestmark = pytest.mark.anyio


class Holding(ToolService):
    """Answers when it may."""

    def __init__(self, id: str) -> None:
        self.id = id  # type: ignore[misc]
        self.tools = [{"name": id, "description": "Hold.", "parameters": {"type": "object"}}]  # type: ignore[misc]
        self.free = asyncio.Event()
        self.running = self.started = self.cleaned = 0

    async def startup(self) -> None:
        """Count."""
        self.started += 1

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Wait until it may end."""
        self.running += 1
        try:
            await self.free.wait()
        finally:
            self.running -= 1
        return f"{self.id} done"

    async def cleanup(self) -> None:
        """Count."""
        self.cleaned += 1


class Failing(Holding):
    """Fails, to be tried again much later."""

    retry = Retry(attempts=3, delay=20.0, jitter=0.0)

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Fail."""
        self.running += 1
        raise ToolError("not now", retryable=True)


def empty(place: Place, **changes: Any) -> Worker:
    """A worker without services."""
    return Worker(None, settings=place.with_(**changes))


async def test_a_service_is_added_while_calls_of_others_run(place: Place) -> None:
    """A call that runs is not disturbed, and one of the new service is answered at once, in a worker that began with none."""
    first, second = Holding("first"), Holding("second")
    second.free.set()
    async with empty(place) as worker, place.bus() as bus:
        await worker.add(first)
        await bus.wait_for_tool("first")
        call = asyncio.create_task(bus.call("first"))
        await eventually(lambda: first.running)
        await worker.add(second)
        await bus.wait_for_tool("second")
        assert (await bus.call("second", timeout=10.0)).output == "second done"
        first.free.set()
        assert (await call).output == "first done"
    assert (first.started, second.started, first.cleaned, second.cleaned) == (1, 1, 1, 1)


async def test_a_call_of_an_added_service_does_not_wait_for_the_read_that_is_under_way(place: Place) -> None:
    """The worker's waiting read ends when a service comes, so that its first call is taken as any other."""
    first, second = Holding("first"), Holding("second")
    second.free.set()
    async with place.serving(first) as bus, empty(place) as worker:
        await worker.add(second)
        await bus.wait_for_tool("second")
        reads = worker.statistics()["commands"]
        assert (await bus.call("second", timeout=20.0)).success
        assert reads > 0


async def test_withdrawing_lets_running_calls_end_and_leaves_others_alone(place: Place) -> None:
    """The service is gone for callers at once; its running call is answered, and other services never notice."""
    first, second = Holding("first"), Holding("second")
    second.free.set()
    async with empty(place) as worker, place.bus() as bus:
        await worker.add(first)
        await worker.add(second)
        await bus.wait_for_tool("first")
        await bus.wait_for_tool("second")
        call = asyncio.create_task(bus.call("first"))
        await eventually(lambda: first.running)
        leaving = asyncio.create_task(worker.withdraw("first"))
        await eventually(lambda: "first" not in bus.tools)
        assert (await bus.call("second", timeout=10.0)).success
        assert not leaving.done()
        first.free.set()
        assert (await call).output == "first done"
        await leaving
        assert (await bus.call("second", timeout=10.0)).success
        assert (first.cleaned, second.cleaned) == (1, 0)
        with pytest.raises(ConfigurationError, match="does not serve"):
            await worker.withdraw("first")


async def test_a_service_that_was_withdrawn_can_be_added_again(place: Place) -> None:
    """It is served as before, any number of times."""
    service = Holding("first")
    service.free.set()
    async with empty(place) as worker, place.bus() as bus:
        for times in range(1, 4):
            await worker.add(service)
            await bus.wait_for_tool("first")
            assert (await bus.call("first", timeout=10.0)).success
            await worker.withdraw("first")
            assert (service.started, service.cleaned) == (times, times)


async def test_what_waits_for_a_withdrawn_service_goes_to_other_workers(place: Place) -> None:
    """A call that waits for its next attempt is handed back, and another worker answers it."""
    failing, helping = Failing("first"), Holding("first")
    helping.free.set()
    async with empty(place) as worker, empty(place) as other, place.bus() as bus:
        await worker.add(failing)
        await bus.wait_for_tool("first")
        call = asyncio.create_task(bus.call("first", timeout=60.0))
        await eventually(lambda: failing.running)
        await other.add(helping)
        await worker.withdraw("first")
        result = await call
    assert (result.output, result.meta.attempts) == ("first done", 2)


async def test_calls_that_do_not_end_in_time_are_cut_off(place: Place) -> None:
    """After the grace period a call without an end goes to another worker, which answers it."""
    slow, helping = Holding("first"), Holding("first")
    helping.free.set()
    async with empty(place, grace=0.1) as worker, empty(place) as other, place.bus() as bus:
        await worker.add(slow)
        await bus.wait_for_tool("first")
        call = asyncio.create_task(bus.call("first", timeout=60.0))
        await eventually(lambda: slow.running)
        await other.add(helping)
        await worker.withdraw("first")
        assert slow.running == 0
        result = await call
    assert (result.output, result.meta.attempts) == ("first done", 2)


async def test_a_service_that_can_not_be_added_leaves_nothing(place: Place) -> None:
    """Names of others, an id that is served and a startup that fails are told; the worker goes on, and the name stays free."""

    class Broken(Holding):
        async def startup(self) -> None:
            raise RuntimeError("no")

    first = Holding("first")
    first.free.set()
    async with empty(place) as worker, empty(place, owner="somebody-else") as other, place.bus() as bus:
        await worker.add(first)
        with pytest.raises(ConfigurationError, match="already"):
            await worker.add(Holding("first"))
        with pytest.raises(RegistrationRefused):
            await other.add(Holding("first"))
        broken = Broken("second")
        with pytest.raises(ConfigurationError, match=r"can't be started: RuntimeError: no - at .*test_contract_adding\.py") as caught:
            await other.add(broken)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert broken.cleaned == 0
        again = Holding("second")
        again.free.set()
        await worker.add(again)
        for name in ("first", "second"):
            await bus.wait_for_tool(name)
            assert (await bus.call(name, timeout=10.0)).success


async def test_services_come_and_go_before_and_after_a_worker_serves(place: Place) -> None:
    """A worker that is not open keeps what it is given for when it opens; one that drains takes nothing."""
    first, second = Holding("first"), Holding("second")
    first.free.set()
    worker = empty(place)
    await worker.add(first)
    await worker.add(second)
    await worker.withdraw("second")
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("first")
        assert (await bus.call("first", timeout=10.0)).success
    assert (first.started, second.started) == (1, 0)


async def test_a_drain_during_a_withdrawal_waits_for_the_same_calls(place: Place) -> None:
    """The running call of a service that is being withdrawn is answered when its worker drains meanwhile."""
    first = Holding("first")
    async with place.bus() as bus:
        worker = empty(place)
        async with worker:
            await worker.add(first)
            await bus.wait_for_tool("first")
            call = asyncio.create_task(bus.call("first"))
            await eventually(lambda: first.running)
            leaving = asyncio.create_task(worker.withdraw("first"))
            await eventually(lambda: "first" not in bus.tools)
            draining = asyncio.create_task(worker.drain())
            with pytest.raises(ConfigurationError, match="drains"):
                await leaving
            first.free.set()
            assert (await call).output == "first done"
            await draining
        assert first.cleaned == 1
