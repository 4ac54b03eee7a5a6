"""Plain functions and generators in threads: order, bounds, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.servers import eventually
from toolbus.results import CallCancelled
from toolbus.worker.run.threads import Threads

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

    iteration = threads.iterate(numbers())
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

    items = aiter(threads.iterate(failing()))
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

    iteration = threads.iterate(endless())
    assert await anext(aiter(iteration)) == 1
    iteration.stop()
    pulled.set()
    with pytest.raises(CallCancelled):
        await asyncio.wait_for(iteration.thread, 5)
    assert closed
    assert closed[0].startswith("toolbus-handler")


async def test_a_stop_is_never_missed(threads: Threads) -> None:
    """A stop that comes just as the thread is about to wait for room does not leave it waiting for ever."""
    ready = threading.Event()

    def endless() -> Iterator[int]:
        ready.wait(5)
        while True:
            yield 1

    iteration = threads.iterate(endless())
    clear = iteration._room.clear

    def stop_first() -> None:
        iteration.stop()
        clear()

    iteration._room.clear = stop_first  # type: ignore[method-assign]
    ready.set()
    with pytest.raises(CallCancelled):
        await asyncio.wait_for(iteration.thread, 5)
