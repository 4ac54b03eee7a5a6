"""Workers of several services take requests, over every transport: at once, by turns, and never beyond their slots."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import Retry, ToolBus, ToolError, ToolResult, tool
from toolbus.bus.worker.function import FunctionTool

pytestmark = pytest.mark.anyio

# A read that waits in the wrong streams does so for two seconds; a busy machine is rarely late by half of that.
LATE = 1.0


class Span(NamedTuple):
    """The times (monotonic) when a call was published, and when its handler began and ended."""

    published: float
    began: float
    ended: float


class Trace:
    """Tools of several services that say when they run."""

    def __init__(self, count: int, seconds: float = 0.005, name: str = "nap") -> None:
        self._name = name
        self.tools = [self._made(number) for number in range(count)]
        self.order: list[int] = []
        self.spans: list[Span] = []
        self.running = self.most = 0
        self._seconds = seconds
        self._handled: dict[str, tuple[float, float]] = {}

    def _made(self, number: int) -> FunctionTool:
        @tool(name=f"{self._name}{number}", service=f"{self._name}s{number}", effect="read", replace=True)
        async def nap(key: str) -> str:
            """Sleep a little."""
            self.order.append(number)
            self.running += 1
            self.most = max(self.most, self.running)
            began = time.monotonic()
            await asyncio.sleep(self._seconds)
            self.running -= 1
            self._handled[key] = began, time.monotonic()
            return key

        return nap

    async def call(self, bus: ToolBus, number: int) -> None:
        """Call one of them."""
        key, published = f"{number} {len(self.spans)} {time.monotonic()}", time.monotonic()
        result = await bus.call(f"{self._name}{number}", {"key": key})
        assert result.success, result.error
        self.spans.append(Span(published, *self._handled[key]))

    def idly_waited(self, slots: int) -> float:
        """Return the longest time that any call waited in a queue while a slot was free."""
        changes = sorted([(span.began, 1) for span in self.spans] + [(span.ended, -1) for span in self.spans])
        free: list[tuple[float, float]] = []
        running, since = 0, 0.0
        for when, change in changes:
            if running < slots:
                free.append((since, when))
            since, running = when, running + change
        return max(
            sum(max(0.0, min(end, span.began) - max(begin, span.published)) for begin, end in free if begin < span.began)
            for span in self.spans
        )


async def load(bus: ToolBus, trace: Trace, called: int, callers: int, calls: int) -> float:
    """Call the first so many tools by turns; how long it took."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for number in numbers:
            await trace.call(bus, number % called)

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.monotonic() - began


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("services", "slots", "called", "callers"),
    [
        (10, 1, 1, 1),
        (10, 1, 10, 1),
        (10, 1, 10, 30),
        (10, 4, 1, 3),
        (10, 4, 10, 30),
        (3, 2, 1, 1),
        (3, 2, 1, 8),
        (3, 2, 3, 8),
        (2, 8, 1, 8),
        (2, 8, 2, 40),
        (3, 20, 1, 30),
        (3, 20, 3, 60),
    ],
)
async def test_a_worker_of_many_services_is_as_quick_as_one_of_one(
    place: Place, services: int, slots: int, called: int, callers: int
) -> None:
    """With any mix of services, slots and load, no call waits while a slot is free, and all take about the time of one service."""
    calls = max(60, 3 * callers)
    alone, mixed = Trace(1, name="alone"), Trace(services)
    async with asyncio.timeout(60):
        async with place.serving(*alone.tools, concurrency=slots) as bus:
            expected = await load(bus, alone, 1, callers, calls)
        async with place.serving(*mixed.tools, concurrency=slots) as bus:
            took = await load(bus, mixed, called, callers, calls)
    assert mixed.idly_waited(slots) < LATE
    assert took < 4 * expected + LATE
    assert mixed.most <= slots


@pytest.mark.parametrize("slots", [1, 3, 7])
async def test_flooded_services_take_turns(place: Place, slots: int) -> None:
    """While four services hold more than can run, each gets about a quarter of the slots."""
    trace = Trace(4)
    async with place.bus() as bus, place.worker(*trace.tools, concurrency=slots):
        await asyncio.gather(*(trace.call(bus, number) for number in range(4) for _ in range(40)))
    # The first ones may have come before all four were flooded, and the last ones when some had run dry.
    begun = Counter(trace.order[10:110])
    assert all(15 <= begun[number] <= 35 for number in range(4)), begun


async def test_a_flood_at_one_service_does_not_hold_up_another(place: Place) -> None:
    """A call of a service that is rarely called is among the next to begin, however much waits at the other."""
    trace = Trace(3, seconds=0.02)
    begun_before: list[int] = []
    async with place.bus() as bus, place.worker(*trace.tools, concurrency=2):
        flood = asyncio.gather(*(trace.call(bus, 0) for _ in range(200)))
        await eventually(lambda: len(trace.order) > 4)
        for _ in range(5):
            before = len(trace.order)
            await trace.call(bus, 1)
            begun_before.append(trace.order.index(1, before) - before)
        await flood
    assert max(begun_before) <= 20, begun_before


class Gate:
    """Tools of several services that hold their slots until they are let go."""

    def __init__(self, count: int) -> None:
        self.tools = [self._made(number) for number in range(count)]
        self.open = asyncio.Event()
        self.running: Counter[str] = Counter()
        self.most = 0

    def _made(self, number: int) -> FunctionTool:
        @tool(name=f"gate{number}", service=f"gates{number}", effect="read", replace=True)
        async def gate() -> str:
            """Run until the gate opens."""
            self.enter("all")
            await self.open.wait()
            self.running["all"] -= 1
            return "through"

        return gate

    def enter(self, name: str) -> None:
        """Count a run in."""
        self.running[name] += 1
        self.most = max(self.most, self.running[name])


async def all_of(calls: Sequence[Awaitable[ToolResult]]) -> list[ToolResult]:
    """Await calls together, within a bounded time."""
    async with asyncio.timeout(20):
        return await asyncio.gather(*calls)


async def test_a_burst_over_many_services_spreads_over_their_workers(place: Place) -> None:
    """Requests beyond a worker's slots run in another worker at once, and no worker runs more than it has slots."""
    gate = Gate(6)
    async with (
        place.worker(*gate.tools, concurrency=1, lease=30.0),
        place.worker(*gate.tools, concurrency=1, lease=30.0),
        place.worker(*gate.tools, concurrency=1, lease=30.0),
        place.bus() as bus,
    ):
        calls = [asyncio.create_task(bus.call(f"gate{number}")) for number in range(6)]
        await eventually(lambda: gate.running["all"] == 3)
        gate.open.set()
        assert all(result.success for result in await all_of(calls))
    assert gate.most == 3


async def test_a_burst_at_a_worker_with_one_slot_runs_to_its_end(place: Place) -> None:
    """A request that was handed back for lack of a slot, and that no other worker takes, runs there as soon as a slot is free."""
    trace = Trace(10)
    async with place.serving(*trace.tools, concurrency=1, lease=30.0) as bus:
        async with asyncio.timeout(15):
            for _ in range(3):
                await asyncio.gather(*(trace.call(bus, number) for number in range(10)))
    assert trace.most == 1
    assert trace.idly_waited(1) < LATE


async def test_a_repeated_run_and_a_new_call_do_not_share_a_slot(place: Place) -> None:
    """While a failed run is repeated in the only slot, a call that comes in waits."""
    entered, release = asyncio.Event(), asyncio.Event()
    attempts = itertools.count(1)
    running: list[str] = []

    @tool(service="slots", effect="read", replace=True, retry=Retry(attempts=2, delay=0.05, most=0.05))
    async def twice() -> str:
        """Fail once, then run until released."""
        if next(attempts) == 1:
            raise ToolError("broken", retryable=True)
        running.append("twice")
        entered.set()
        await release.wait()
        running.remove("twice")
        return "done"

    @tool(service="slots", effect="read", replace=True)
    async def other() -> str:
        """Say who else runs."""
        return ", ".join(running)

    async with place.serving(twice, other, concurrency=1) as bus:
        repeated = asyncio.create_task(bus.call("twice"))
        await entered.wait()
        late = asyncio.create_task(bus.call("other"))
        # It has passed the broker by the time that this one, which goes the same way, is known to wait.
        done, _ = await asyncio.wait([late], timeout=0.3)
        assert not done
        release.set()
        assert (await repeated).output == "done"
        assert (await late).output == ""


async def test_what_a_busy_worker_is_handed_runs_when_its_slot_is_free(place: Place) -> None:
    """A call that a leaving worker hands back while all others are busy begins as soon as one of them is not."""
    begun: list[str] = []
    release = {"first": asyncio.Event(), "second": asyncio.Event()}

    @tool(service="handed", effect="idempotent", replace=True)
    async def held(name: str) -> str:
        """Run until released."""
        begun.append(name)
        await release[name].wait()
        return name

    async with place.bus() as bus:
        leaving = place.worker(held, concurrency=1, lease=30.0, grace=0.1)
        async with leaving:
            await bus.wait_for_tool("held")
            first = asyncio.create_task(bus.call("held", {"name": "first"}))
            await eventually(lambda: begun == ["first"])
            staying = place.worker(held, concurrency=1, lease=30.0)
            await staying.__aenter__()
            second = asyncio.create_task(bus.call("held", {"name": "second"}))
            await eventually(lambda: begun == ["first", "second"])
        release["second"].set()
        assert (await second).output == "second"
        # A third of a lease later, whoever has slots looks for such calls anyway.
        await eventually(lambda: begun == ["first", "second", "first"], timeout=4.0)
        release["first"].set()
        assert (await first).output == "first"
        await staying.drain()
