"""Callers that join a shared call with other timeouts than the first one's, over every transport."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, ToolResult, invocation, tool
from toolbus.bus.values.events import Text
from toolbus.bus.worker.slots import Slots

pytestmark = pytest.mark.anyio

runs: list[str] = []
occupied: list[int] = []


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    """Forget what earlier tests did."""
    runs.clear()
    occupied.clear()


@tool(service="joining", effect="read")
async def think(first: float, later: float) -> Any:
    """Speak, and take so long in the first run, and in later ones."""
    runs.append(invocation().id)
    yield "one "
    await asyncio.sleep(first if len(runs) == 1 else later)
    yield "two"


@tool(service="joining", effect="read")
async def occupy(seconds: float) -> str:
    """Take a while."""
    occupied.append(1)
    await asyncio.sleep(seconds)
    return ""


def calls(bus: ToolBus, *timeouts: float, first: float = 60.0, later: float = 0.0) -> list[asyncio.Task[ToolResult]]:
    """Equal calls with one key and these timeouts."""
    arguments = {"first": first, "later": later}
    return [asyncio.create_task(bus.call("think", arguments, idempotency_key="k", timeout=timeout)) for timeout in timeouts]


@tool(service="joining", effect="once")
async def act(seconds: float) -> float:
    """Act, and tell how much time is left."""
    runs.append(invocation().id)
    await asyncio.sleep(seconds)
    return invocation().remaining


@pytest.mark.parametrize("others", [1, 3])
async def test_a_joiner_has_its_own_timeout(place: Place, others: int) -> None:
    """When the first caller's time is up the run goes on for those with more."""
    async with place.serving(think) as bus, place.bus() as other:
        await bus.wait_for_tool("think")
        await other.wait_for_tool("think")
        first = calls(bus, 1.0, first=2.5)
        await eventually(lambda: len(runs) == 1)
        joined = calls(bus, 20.0, first=2.5) + calls(other, *[20.0] * (others - 1), first=2.5)
        error = (await first[0]).error
        assert error is not None
        assert error.type == "deadline_exceeded"
        for each in joined:
            result = await each
            assert (result.output, result.error, result.meta.attempts) == ("one two", None, 1)
    assert len(runs) == 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_once_work_runs_as_long_as_a_joiner_waits(place: Place, at_once: bool) -> None:
    """It can't be run again, so it is given the time of whoever has most, and its handler knows."""
    async with place.serving(act) as bus:
        await bus.wait_for_tool("act")
        first = asyncio.create_task(bus.call("act", {"seconds": 2.0}, idempotency_key="k", timeout=1.0))
        await eventually(lambda: at_once or len(runs) == 1)
        joined = asyncio.create_task(bus.call("act", {"seconds": 2.0}, idempotency_key="k", timeout=20.0))
        error = (await first).error
        assert error is not None
        assert error.type == "outcome_unknown"
        result = await joined
        assert result.error is None
        assert 15.0 < result.data < 19.0
        # The answer is there for later callers, too.
        assert (await bus.call("act", {"seconds": 2.0}, idempotency_key="k")).data == result.data
    assert len(runs) == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_joiner_whose_time_the_worker_did_not_hear_of_runs_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """A message may be lost; text that the joiner has heard of the first run is not said again when the next one says the same."""
    monkeypatch.setattr(Slots, "on_extended", lambda *what: None)
    async with place.serving(think) as bus:
        await bus.wait_for_tool("think")
        first = calls(bus, 1.0)
        await eventually(lambda: len(runs) == 1)
        if streaming:
            async with bus.stream("think", {"first": 60.0, "later": 0.0}, idempotency_key="k", timeout=20.0) as call:
                events = [event async for event in call.events()]
            assert "".join(event.text for event in events if isinstance(event, Text)) == "one two"
        else:
            result = await calls(bus, 20.0)[0]
            assert (result.output, result.error, result.meta.attempts) == ("one two", None, 2)
        assert (await first[0]).error is not None
    assert len(runs) == 2


async def test_a_joiner_with_less_time_ends_alone(place: Place) -> None:
    """The call goes on for the others."""
    async with place.serving(think) as bus:
        await bus.wait_for_tool("think")
        first = calls(bus, 20.0, first=2.0)
        await eventually(lambda: len(runs) == 1)
        began = time.monotonic()
        error = (await calls(bus, 0.5, first=2.0)[0]).error
        assert error is not None
        assert (error.type, error.message.partition(":")[0]) == ("deadline_exceeded", "no result within 0.5 s")
        assert time.monotonic() - began < 1.9
        assert (await first[0]).output == "one two"
    assert len(runs) == 1


async def test_a_joiner_of_a_call_that_never_ran_has_its_own_timeout(place: Place) -> None:
    """The first caller's time was up in the queue; the joiner's call runs when there is room."""
    async with place.serving(think, concurrency=1) as bus:
        await bus.wait_for_tool("think")
        blocker = asyncio.create_task(bus.call("occupy", {"seconds": 2.0}))
        await eventually(lambda: len(occupied) == 1)
        first, joined = calls(bus, 0.8, 20.0, first=0.0)
        assert (await first).error is not None
        assert (await joined).output == "one two"
        assert (await blocker).error is None
    assert len(runs) == 1


async def test_the_last_caller_ends_with_its_own_timeout(place: Place) -> None:
    """Each caller in turn, and nobody goes on after the last."""
    async with place.serving(think) as bus:
        await bus.wait_for_tool("think")
        began = time.monotonic()
        first = calls(bus, 0.6, later=60.0)
        await eventually(lambda: len(runs) == 1)
        for each, seconds in zip((*first, *calls(bus, 1.4, 2.2, later=60.0)), (0.6, 1.4, 2.2), strict=True):
            error = (await each).error
            assert error is not None
            assert error.type == "deadline_exceeded"
            assert seconds - 0.1 < time.monotonic() - began < seconds + 1.5
