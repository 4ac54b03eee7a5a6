"""Plain functions and generators in threads: who shares one, order, bounds, and how they end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import eventually
from toolbus.bus.values.results import CallCancelled
from toolbus.bus.worker.handlers import Pace
from toolbus.bus.worker.handling import ThreadIteration, Threads

pytestmark = pytest.mark.anyio

# More than a thread may run ahead.
MANY = 1_000


@pytest.fixture
def threads() -> Iterator[Threads]:
    """A pool of two threads."""
    pool = Threads(2)
    yield pool
    pool.close()


async def test_items_arrive_in_order_and_the_thread_is_held_back(threads: Threads) -> None:
    """A reader gets every item in order; a generator runs at most 256 items ahead of it."""
    produced = 0

    def numbers() -> Iterator[int]:
        nonlocal produced
        while produced < MANY:
            produced += 1
            yield produced

    iteration = ThreadIteration(threads, numbers(), Pace())
    seen: list[int] = []
    async for item in iteration:
        if not seen:
            await eventually(lambda: produced >= 200)
        assert produced - len(seen) <= 300
        seen.append(item)
    assert seen == list(range(1, MANY + 1))


async def test_an_exception_comes_after_the_items_before_it(threads: Threads) -> None:
    """An exception of a generator reaches the reader once its items have."""

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = aiter(ThreadIteration(threads, failing(), Pace()))
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(items)


@pytest.mark.parametrize("ahead", [1, MANY])
async def test_stopping_closes_the_generator_in_its_thread(threads: Threads, ahead: int) -> None:
    """A stopped generator ends at its next item, also when it waits for its reader, and its finally runs in the thread."""
    closed: list[str] = []
    pulled = threading.Event()

    def endless() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield (number := number + 1)
                if number >= ahead:
                    pulled.wait(10)
        finally:
            closed.append(threading.current_thread().name)

    iteration = ThreadIteration(threads, endless(), Pace())
    assert await anext(aiter(iteration)) == 1
    iteration.stop()
    pulled.set()
    with pytest.raises(CallCancelled):
        await asyncio.wait_for(iteration.thread.wait(), 5)
    assert closed
    assert closed[0].startswith("toolbus-handler")


async def test_a_stop_is_never_missed(threads: Threads) -> None:
    """A stop that comes just as the thread is about to wait for room does not leave it waiting for ever."""
    ready = threading.Event()

    def endless() -> Iterator[int]:
        ready.wait(5)
        while True:
            yield 1

    iteration = ThreadIteration(threads, endless(), Pace())
    clear = iteration._room.clear

    def stop_first() -> None:
        iteration.stop()
        clear()

    iteration._room.clear = stop_first  # type: ignore[method-assign]
    ready.set()
    with pytest.raises(CallCancelled):
        await asyncio.wait_for(iteration.thread.wait(), 5)


# -- functions ------------------------------------------------------------------------------------


async def learned(threads: Threads) -> Pace:
    """Return the pace of a function that has been quick."""
    pace = Pace()
    while pace.seconds > 0.0001:
        await threads.call(lambda: None, pace).wait()
    return pace


async def test_quick_functions_share_a_thread_and_its_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that have been quick run one after another in one thread, which wakes the event loop once for many."""
    threads = Threads(64)
    loop = asyncio.get_running_loop()
    pace = await learned(threads)
    wakes = 0
    wake = loop.call_soon_threadsafe

    def counted(*arguments: Any) -> asyncio.Handle:
        nonlocal wakes
        wakes += 1
        return wake(*arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    names: set[str] = set()
    for _ in range(20):
        calls = [threads.call(lambda: threading.current_thread().name, pace) for _ in range(100)]
        names |= set(await asyncio.gather(*(call.wait() for call in calls)))
    threads.close()
    # A machine that is busy makes some of them long, and the others get another thread.
    assert len(names) <= 8
    assert wakes <= 400


async def test_what_waits_behind_an_unexpectedly_long_function_gets_a_thread(threads: Threads) -> None:
    """A function that was quick and now blocks keeps nobody from running."""
    pace = await learned(threads)
    release = threading.Event()
    long = threads.call(release.wait, pace)
    behind = [threads.call(lambda: 1, pace) for _ in range(5)]
    assert await asyncio.wait_for(asyncio.gather(*(call.wait() for call in behind)), 5) == [1] * 5
    assert not long.done()
    release.set()
    assert await long.wait()


async def test_blocking_functions_all_run_at_once() -> None:
    """Functions that take long each have a thread at once, up to the size of the pool, and further ones follow."""
    threads = Threads(8)
    barrier = threading.Barrier(8)
    pace = Pace()
    calls = [threads.call(lambda: barrier.wait(10), pace) for _ in range(16)]
    places = await asyncio.gather(*(call.wait() for call in calls))
    threads.close()
    assert sorted(places) == sorted([*range(8), *range(8)])


async def test_a_function_goes_on_when_nobody_waits_for_it(threads: Threads) -> None:
    """Cancelling who waits stops no thread and nobody else who waits for it."""
    release = threading.Event()
    call = threads.call(release.wait, Pace())
    waiting = asyncio.create_task(call.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not call.done()
    other = asyncio.create_task(call.join())
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.join(), 0.01)
    assert not other.done()
    release.set()
    await asyncio.wait_for(other, 5)
    assert call.done()


@pytest.mark.parametrize(("raised", "seen"), [(ValueError("x"), ValueError), (StopIteration(1), RuntimeError), (SystemExit(3), SystemExit)])
async def test_what_a_function_raises_reaches_who_waits(threads: Threads, raised: BaseException, seen: type[BaseException]) -> None:
    """Any exception arrives where the call is awaited, and the thread goes on with others."""

    def failing() -> None:
        raise raised

    pace = await learned(threads)
    with pytest.raises(seen):
        await threads.call(failing, pace).wait()
    assert await threads.call(lambda: 2, pace).wait() == 2


async def test_functions_that_share_a_thread_share_no_context(threads: Threads) -> None:
    """Each function sees the context of who called it, and leaves nothing for the next one."""
    pace = await learned(threads)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")

    def swap() -> str:
        before = variable.get()
        variable.set("left behind")
        return before

    variable.set("mine")
    mine = threads.call(swap, pace)
    variable.set("yours")
    yours = threads.call(swap, pace)
    assert [await mine.wait(), await yours.wait(), variable.get()] == ["mine", "yours", "yours"]


async def test_a_closed_pool_ends_its_threads() -> None:
    """Parked threads end when the pool is closed, a busy one after its function."""
    others = set(threading.enumerate())
    threads = Threads(4)
    release = threading.Event()
    started = [threads.call(release.wait, Pace()) for _ in range(3)]
    await threads.call(lambda: None, Pace()).wait()
    mine = set(threading.enumerate()) - others
    assert mine
    threads.close()
    release.set()
    for call in started:
        await asyncio.wait_for(call.join(), 5)
    await eventually(lambda: not any(thread.is_alive() for thread in mine))
