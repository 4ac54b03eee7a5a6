"""A read that waits: it is made to return, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.test_take import Taking
from tests.servers import eventually

pytestmark = pytest.mark.anyio


class WaitingTake:
    """A take whose read waits until the test ends it."""

    def __init__(self, taking: Taking) -> None:
        self.taking = taking
        self._ends = asyncio.Event()
        self._task: asyncio.Future[Any] | None = None
        taking.blocking.execute = self._execute  # type: ignore[method-assign]

    async def _execute(self, *args: Any, repeatable: bool = False) -> Any:
        await self._ends.wait()

    async def begin(self) -> None:
        """Begin to take."""
        self._ends.clear()
        self._task = asyncio.ensure_future(self.taking.intake.take(10))
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Let the read end."""
        assert self._task is not None
        self._ends.set()
        assert await self._task == []


@pytest.fixture
async def waiting() -> AsyncIterator[WaitingTake]:
    """A worker with ten slots."""
    made = WaitingTake(Taking())
    yield made
    made.taking.bench.forget()


async def test_an_interruption_ends_the_next_take_at_once() -> None:
    """One of them, and without a read; there is nothing to unblock or to give up."""
    taking = Taking()
    taking.intake.interrupt()
    taking.intake.abort()
    assert (taking.writing.names, taking.aborted) == ([], 0)
    assert await taking.intake.take(10) == []
    assert taking.blocking.names == []
    await taking.intake.take(10)
    assert taking.blocking.names == ["XREADGROUP"]


async def test_an_interruption_unblocks_a_read_that_waits(waiting: WaitingTake) -> None:
    """Over the other connection, by the waiting one's number; a read that never ends is given up."""
    taking = waiting.taking
    for times in (1, 2):
        await waiting.begin()
        taking.intake.interrupt()
        assert taking.writing.args("CLIENT") == [("UNBLOCK", 7)] * times
        taking.intake.abort()
        assert taking.aborted == times
        await waiting.end()
        taking.intake.abort()
        assert taking.aborted == times
        assert await taking.intake.take(10) == []
    assert taking.writing.args("CLIENT") == [("UNBLOCK", 7)] * 2


async def test_a_read_that_goes_on_waiting_is_told_again(waiting: WaitingTake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message may have overtaken the read; once that has ended nothing more is said."""
    monkeypatch.setattr("toolbus.bus.broker.take.intake._UNBLOCK_AGAIN", 0.001)
    link = waiting.taking.writing
    await waiting.begin()
    waiting.taking.intake.interrupt()
    await eventually(lambda: len(link.args("CLIENT")) >= 3)
    await waiting.end()
    link.seen.clear()
    later = asyncio.Event()
    # A timer that was set before goes off before this one.
    asyncio.get_running_loop().call_later(0.001, later.set)
    await later.wait()
    assert link.names == []


@pytest.mark.parametrize("lacks", ["number", "connection"])
async def test_a_read_that_can_not_be_told_is_told_later(waiting: WaitingTake, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Its number is unknown, or the connection to say it over is gone, and may come back."""
    monkeypatch.setattr("toolbus.bus.broker.take.intake._UNBLOCK_AGAIN", 0.001)
    blocking, writing = waiting.taking.blocking, waiting.taking.writing
    server = blocking.server
    if lacks == "number":
        blocking.server = None
    else:
        writing.connected = False
    await waiting.begin()
    waiting.taking.intake.interrupt()
    assert writing.names == []
    blocking.server, writing.connected = server, True
    await eventually(lambda: writing.names)
    await waiting.end()


async def test_what_is_no_longer_read_waits_for_the_read_that_is_under_way(waiting: WaitingTake) -> None:
    """The read under way is told to end until it does; neither a later read nor none at all is waited for."""
    async with asyncio.timeout(2):
        await waiting.taking.intake.passed()
    await waiting.begin()
    passing = asyncio.ensure_future(waiting.taking.intake.passed())
    for number in (1, 2, 3):
        await eventually(lambda number=number: waiting.taking.writing.names.count("CLIENT") >= number)
    assert not passing.done()
    await waiting.end()
    await waiting.taking.intake.take(10)
    await waiting.begin()
    async with asyncio.timeout(2):
        await passing
    await waiting.end()
