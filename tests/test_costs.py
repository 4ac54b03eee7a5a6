"""Costs of a call: commands and bytes at the server; functions, writes, wake-ups and blocks of memory at the caller and the worker.

All are counts, not times, so that a slow machine changes nothing. The bounds are what was measured and a little more: lower them when a
change makes calls cheaper.
"""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import redis
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

import toolbus
from tests.contract import Place
from tests.servers import eventually
from toolbus import Settings, ToolBus, ToolService, Worker, tool
from toolbus.bus import telemetry
from toolbus.bus.broker.publish import Publisher
from toolbus.bus.broker.replies.finish import Outbox
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.events import Started
from toolbus.bus.worker.slots import Slots

pytestmark = pytest.mark.anyio

TEXT = "x" * 200
CALLS = 1_000
STREAMS = 16
CHUNKS = 100
AT_ONCE = 50
# Deadlines are kept in buckets of 20 ms until their time: with a second's timeout they are soon gone.
TIMEOUT = 1.0


@tool(service="costs", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="costs-second", effect="read")
async def second() -> str:
    """Be there."""
    return ""


@tool(service="costs-third", effect="read")
async def third() -> str:
    """Be there."""
    return ""


@tool(service="costs", effect="read")
async def rush(count: int, size: int) -> AsyncIterator[str]:
    """Stream pieces of text without waiting."""
    for _ in range(count):
        yield "x" * size


@tool(service="costs", effect="read")
async def stroll(count: int, size: int) -> AsyncIterator[str]:
    """Stream pieces of text, letting the event loop run between them."""
    for _ in range(count):
        yield "x" * size
        await asyncio.sleep(0)


@tool(service="costs", effect="read")
async def fail() -> str:
    """Fail."""
    raise ValueError(TEXT)


entered: list[None] = []
"""One for each call of ``hold`` that has begun."""


@tool(service="costs", effect="read")
async def hold() -> str:
    """Wait to be cancelled."""
    entered.append(None)
    await asyncio.Event().wait()
    return ""


class Meter:
    """Counts what a server is asked."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self.commands = self.bytes = 0

    def start(self) -> None:
        """Begin to count."""
        self._client.config_resetstat()

    def read(self) -> None:
        """Take the counts; commands within scripts count too."""
        stats = self._client.info("stats")
        self.commands = stats["total_commands_processed"]
        self.bytes = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


@tool(service="costs", effect="read", confirm=True)
async def careful(text: str) -> str:
    """Give a text back, if a person allows it."""
    return text


async def allow(_: object) -> bool:
    """Allow everything at once."""
    return True


async def calls(bus: ToolBus, at_once: int, name: str = "echo", *, executed: bool = False) -> None:
    """Make many calls, so many at a time, as a program or as an executor that confirms them itself."""
    left = CALLS
    call = bus.executor(confirmer=allow).execute if executed else bus.call

    async def one_after_another() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            assert (await call(name, {"text": TEXT})).output == TEXT

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", ["echo", "careful"])
async def test_an_executors_call_costs_no_more_commands(fresh_server: Any, namespace: str, name: str) -> None:
    """A model's call, also one that the executor's own process confirms, asks the server as much as a program's call."""
    server: EmbeddedServer = fresh_server()
    async with Place(server.url, namespace).serving(echo, careful, lease=30.0) as bus:
        await bus.wait_for_tool(name)
        meter, found = Meter(server.url), []
        for _ in range(5):
            meter.start()
            await calls(bus, 64, name, executed=True)
            meter.read()
            found.append(meter.commands / CALLS)
        meter.close()
    assert min(found) <= 1.6, found


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("at_once", "beside", "commands", "size"),
    # What was measured (14.24, 1.43 and 1.23 commands; 2,793 and 1,732 bytes), and a little more.
    [(1, (), 14.6, 2_950), (64, (), 1.5, 1_850), (64, (second, third), 1.5, 1_850), (256, (), 1.35, 1_850)],
    ids=["1", "64", "64 to one of three services", "256"],
)
async def test_a_call_costs_no_more_commands_and_bytes_than_it_did(
    fresh_server: Any, namespace: str, at_once: int, beside: tuple[Any, ...], commands: float, size: float
) -> None:
    """Alone it takes a handful of commands; many at once share them, also where their worker serves more."""
    server: EmbeddedServer = fresh_server()
    place = Place(server.url, namespace)
    async with place.serving(echo, *beside, lease=30.0, concurrency=64) as bus:
        await bus.wait_for_tool("echo")
        await calls(bus, at_once)
        meter = Meter(server.url)
        found = []
        # Beats and turns of the upkeep fall into some of them: on a busy machine many, since the calls take longer there.
        for _ in range(5):
            meter.start()
            await calls(bus, at_once)
            meter.read()
            found.append((meter.commands / CALLS, meter.bytes / CALLS))
        meter.close()
    assert min(each for each, _ in found) <= commands, found
    assert min(each for _, each in found) <= size, found


class Costs(NamedTuple):
    """The work of one side for a call: functions of the package that it enters, writes to sockets, and turns of its event loop."""

    functions: float
    writes: float
    turns: float


PACKAGE = str(Path(toolbus.__file__).parent)
WRITES = {"send", "sendmsg"}


class Counting:
    """Counts what the thread that enters it does; each side has a thread of its own."""

    def __init__(self) -> None:
        self._functions = self._writes = self._turns = 0

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._functions += frame.f_code.co_filename.startswith(PACKAGE)
        elif event == "c_call":
            self._writes += called.__name__ in WRITES
            # The selector looks once in each turn.
            self._turns += called.__name__ == "poll"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count within."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def costs(self) -> Costs:
        """The counts so far."""
        return Costs(self._functions, self._writes, self._turns)


@contextmanager
def worker_in_a_thread(settings: Settings, counting: Counting) -> Iterator[None]:
    """Run a worker with an event loop and a thread of its own."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with Worker([echo], settings=settings):
            with counting.running():
                await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("at_once", "caller", "worker"),
    [
        # Measured: (59.8, 2.0, 8.0; three turns are of this test) and (67.0, 1.98, 4.1).
        (1, Costs(61, 2.1, 8.3), Costs(68, 2.1, 5.5)),
        # Measured: (32.5, 0.047, 0.20) and (27.3, 0.062, 0.16).
        (64, Costs(34, 0.06, 0.25), Costs(29, 0.075, 0.2)),
    ],
)
def test_a_call_costs_no_more_at_its_two_ends_than_it_did(server: str, namespace: str, at_once: int, caller: Costs, worker: Costs) -> None:
    """Neither the caller nor the worker enters more functions, writes more often or wakes up more often for a call; many share a write."""
    settings = Settings.load({}, url=server, namespace=namespace, lease=30.0)
    ends = (Counting(), Counting())
    rounds: tuple[list[Costs], list[Costs]] = ([], [])

    async def call() -> None:
        async with ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("echo")

            async def all_at_once() -> None:
                await asyncio.gather(*[bus.call("echo", {"text": TEXT}) for _ in range(at_once)])

            for _ in range(20):
                await all_at_once()
            number = max(10, 50 // at_once)
            with ends[0].running():
                # Beats and turns of the upkeep fall into some of them.
                for _ in range(8):
                    before = [end.costs() for end in ends]
                    for _ in range(number):
                        await all_at_once()
                    for end, found, began in zip(ends, rounds, before, strict=True):
                        each = zip(end.costs(), began, strict=True)
                        found.append(Costs(*((now - then) / (number * at_once) for now, then in each)))

    with worker_in_a_thread(settings, ends[1]):
        asyncio.run(call())
    for name, bound, found in zip(("caller", "worker"), (caller, worker), rounds, strict=True):
        least = Costs(*map(min, zip(*found, strict=True)))
        assert all(0 < one <= most for one, most in zip(least, bound, strict=True)), f"{name}: {least}, at most {bound}"


class Sticky(ToolService):
    """A service that keeps its sessions where they began."""

    id = "sticky"
    sticky_sessions = True

    @tool(effect="read")
    async def echo_in_session(self, text: str) -> str:
        """Give a text back."""
        return text


@pytest.mark.usefixtures("slow")
async def test_a_call_of_a_session_costs_no_more_commands_at_its_worker(fresh_server: Any, namespace: str) -> None:
    """The owner of a session is looked up once; later calls cost the same as others."""
    server: EmbeddedServer = fresh_server()
    place = Place(server.url, namespace)

    async def call_in_sessions(bus: ToolBus) -> None:
        async def one_after_another(session: str) -> None:
            for _ in range(CALLS // 64):
                assert (await bus.call("echo_in_session", {"text": TEXT}, session=session)).output == TEXT

        await asyncio.gather(*(one_after_another(f"s{number}") for number in range(64)))

    async with place.serving(Sticky(), lease=30.0) as bus:
        await bus.wait_for_tool("echo_in_session")
        await call_in_sessions(bus)
        meter = Meter(server.url)
        meter.start()
        await call_in_sessions(bus)
        meter.read()
        meter.close()
    # As for calls without a session.
    assert meter.commands / CALLS <= 1.6, f"{meter.commands / CALLS:.2f} commands a call"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("stream", "commands"),
    # Measured: 0.022. One piece each per turn of the loop shares at least that turn's flush, at most 4 commands for 16 pieces;
    # how many turns share one depends on the server's speed (0.02 to 0.17).
    [("rush", 0.04), ("stroll", 0.3)],
)
async def test_chunks_of_bulk_streams_share_commands(fresh_server: Any, namespace: str, stream: str, commands: float) -> None:
    """Pieces of many streams that wait for the same flush leave together, whatever stream they are of."""
    server: EmbeddedServer = fresh_server()
    place = Place(server.url, namespace)

    async def read() -> None:
        async with bus.stream(stream, {"count": CHUNKS, "size": 50}) as call:
            assert sum([len(text) async for text in call]) == CHUNKS * 50

    async with place.serving(rush, stroll, lease=30.0) as bus:
        await bus.wait_for_tool(stream)
        await read()
        meter = Meter(server.url)
        meter.start()
        await asyncio.gather(*(read() for _ in range(STREAMS)))
        meter.read()
        meter.close()
    per_chunk = meter.commands / (STREAMS * CHUNKS)
    assert per_chunk <= commands, f"{per_chunk:.3f} commands a chunk"


def blocks() -> int:
    """Blocks of memory that live objects hold now."""
    gc.collect()
    # A loop that is late, be it by the collection, has its stack shown by its watch, and Python keeps the source of every file in it.
    linecache.clearcache()
    return sys.getallocatedblocks()


async def settled(bus: ToolBus) -> int:
    """Blocks of memory that live objects hold after one more call, once the deadlines of what has ended are over."""
    # What was taken last stays until something else is.
    await one_of_each(bus)
    over = time.monotonic() + TIMEOUT + 0.1
    await eventually(lambda: time.monotonic() > over)
    return blocks()


async def one_of_each(bus: ToolBus) -> None:
    """Make a call that returns, a stream, a call that fails, and one that is cancelled while it runs."""
    assert (await bus.call("echo", {"text": TEXT}, timeout=TIMEOUT)).success
    async with bus.stream("stroll", {"count": 3, "size": 50}, timeout=TIMEOUT) as call:
        assert [text async for text in call]
    assert not (await bus.call("fail", {}, timeout=TIMEOUT)).success
    async with bus.stream("hold", {}, timeout=TIMEOUT) as call:
        await anext(event async for event in call.events() if isinstance(event, Started))


@pytest.fixture
def frozen() -> Iterator[None]:
    """Keep what other tests left out of the collections, which would hold up the event loop for a second each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("slow")
@pytest.mark.usefixtures("frozen")
async def test_a_call_that_has_ended_leaves_nothing_in_memory(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After calls end in any way, neither the caller nor the worker holds memory for them."""
    # A cancelled handler is looked at again after some seconds, and pytest keeps every log record.
    monkeypatch.setattr("toolbus.bus.worker.slots._STOPS_WITHIN", TIMEOUT / 2)
    logging.disable()
    place = Place(server, namespace)
    batches = 2 * CALLS // AT_ONCE
    try:
        # Other tests' exporters would keep every span.
        with telemetry.providers(tracer=NoOpTracerProvider(), meter=NoOpMeterProvider()):
            left = await left_of_each(place, batches)
    finally:
        logging.disable(logging.NOTSET)
    # A few hundred in all come and go.
    assert left < 0.5, f"{left:.2f} blocks are left of a call of each kind"


async def left_of_each(place: Place, batches: int) -> float:
    """Blocks of memory that are left of one call of each kind."""
    async with place.serving(echo, stroll, fail, hold, lease=30.0) as bus:
        await bus.wait_for_tool("echo")
        await asyncio.gather(*(one_of_each(bus) for _ in range(AT_ONCE)))
        left: list[float] = []
        # A module that is loaded meanwhile is left once; what a call leaves is left each time.
        while len(left) < 3 and min(left, default=1.0) >= 0.5:
            before = await settled(bus)
            for _ in range(batches):
                await asyncio.gather(*(one_of_each(bus) for _ in range(AT_ONCE)))
            left.append((await settled(bus) - before) / (batches * AT_ONCE))
        return min(left)


@pytest.mark.usefixtures("slow")
@pytest.mark.usefixtures("frozen")
async def test_a_call_that_waits_holds_no_more_memory_than_it_did(namespace: str) -> None:
    """The memory of a queued call is at the caller, and the additional memory of a running one at the worker."""
    place = Place("memory://", namespace)
    async with place.worker(hold, concurrency=1) as busy, place.bus() as bus:
        await bus.wait_for_tool("hold")
        calls = [asyncio.create_task(bus.call("hold"))]
        await eventually(lambda: busy.statistics()["running"] == 1)
        nothing = blocks()
        calls += [asyncio.create_task(bus.call("hold")) for _ in range(CALLS)]
        await eventually(lambda: bus.statistics()["in_flight"] == 1 + CALLS)
        queued = blocks()
        entered.clear()
        async with place.worker(hold, concurrency=2 * CALLS) as free:
            await eventually(lambda: len(entered) == free.statistics()["running"] == CALLS)
            running = blocks()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    caller, worker = (queued - nothing) / CALLS, (running - queued) / CALLS
    # What was measured (26 and 36 blocks of at most 512 bytes), and a quarter more, since Python's versions differ.
    assert caller <= 32, f"{caller:.1f} blocks a call at the caller"
    assert worker <= 45, f"{worker:.1f} blocks a call at the worker"


async def test_what_a_lone_call_sends_leaves_in_the_turn_in_which_it_is_made(
    server: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call of a caller that was just woken, and the end of a call's first step, wait for no further turn of the loop."""
    loop, turn, seen = asyncio.get_running_loop(), 0, dict[str, int]()
    waits: dict[str, list[int]] = {"caller": [], "worker": []}

    def count() -> None:
        nonlocal turn, ticking
        turn, ticking = turn + 1, loop.call_soon(count)

    def noted(kind: type, name: str, side: str, *, sends: bool) -> None:
        before = getattr(kind, name)

        def note(*args: Any) -> Any:
            if sends and side in seen:
                waits[side].append(turn - seen.pop(side))
            elif not sends:
                seen[side] = turn
            return before(*args)

        monkeypatch.setattr(kind, name, note)

    settings = Settings.load({}, url=server, namespace=namespace)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("echo")
        noted(ReplyReader, "_arrived", "caller", sends=False)
        noted(Publisher, "_send_all", "caller", sends=True)
        noted(Slots, "start", "worker", sends=False)
        noted(Outbox, "_send_all", "worker", sends=True)
        ticking = loop.call_soon(count)
        for _ in range(20):
            await bus.call("echo", {"text": TEXT})
        ticking.cancel()
    assert {side: min(found) for side, found in waits.items()} == {"caller": 1, "worker": 1}
