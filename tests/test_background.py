"""Background tasks that begin again, and works of which the first ends the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.servers import eventually
from toolbus import Settings, ToolBus, ToolbusError, Worker, tool
from toolbus.bus.broker.transport import links
from toolbus.bus.support.waiting import beside, cancelled, either
from toolbus.bus.telemetry import background
from toolbus.bus.telemetry.background import MOST_FAILURES, keep_running

pytestmark = pytest.mark.anyio


@tool(service="resting", effect="read")
async def nothing() -> None:
    """Do nothing."""


class Work:
    """Fails so many times, and then returns."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.begun = 0

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self.failures:
            raise ValueError(f"failure {self.begun}")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of no length."""
    monkeypatch.setattr(background, "_FIRST", 0.0)


async def test_work_that_fails_begins_again() -> None:
    """It is begun until it returns."""
    work = Work(MOST_FAILURES - 1)
    await keep_running("work", work, every=0)
    assert work.begun == MOST_FAILURES


async def test_work_that_fails_for_good_is_given_up() -> None:
    """After so many failures in a row the last one is told, with the name of what failed."""
    work = Work(MOST_FAILURES)
    with pytest.raises(ToolbusError, match=f"work failed {MOST_FAILURES} times in a row, at last with ValueError: failure {MOST_FAILURES}"):
        await keep_running("work", work, every=0)
    assert work.begun == MOST_FAILURES


async def test_work_that_fails_while_it_is_cancelled_ends() -> None:
    """Its failure does not take the place of the cancellation, for whose end others wait."""
    begun: list[asyncio.Event] = []

    async def work() -> None:
        async def fails() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("while it ended")

        begun.append(asyncio.Event())
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            begun[-1].set()

    task = asyncio.create_task(keep_running("work", work, every=0))
    await eventually(lambda: bool(begun) and begun[0].is_set())
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=30)
    assert done == {task}
    assert task.cancelled()
    assert len(begun) == 1


async def test_failures_that_are_far_apart_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has worked for a while starts counting failures from zero."""
    monkeypatch.setattr(background, "_SETTLED", -1.0)
    work = Work(3 * MOST_FAILURES)
    await keep_running("work", work, every=0)
    assert work.begun == 3 * MOST_FAILURES + 1


async def test_an_attempt_that_only_slept_has_not_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that sleeps before each turn is given up when each of them fails, however long it sleeps."""
    monkeypatch.setattr(background, "_SETTLED", 0.0)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.01)
        if begun <= MOST_FAILURES:
            raise ValueError("each turn fails")

    with pytest.raises(ToolbusError, match="each turn fails"):
        await keep_running("work", work, every=30.0)
    assert begun == MOST_FAILURES


async def test_every_task_that_sleeps_says_for_how_long(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each background task of an agent and a worker sleeps no longer than it was started with, though the lease is long."""
    kept: dict[str, float] = {}
    slept: dict[str, float] = {}

    async def keep(name: str, work: Callable[[], Coroutine[Any, Any, None]], *, every: float) -> None:
        kept[f"toolbus-{name}"] = max(every, kept.get(f"toolbus-{name}", 0.0))
        await keep_running(name, work, every=every)

    async def sleep(seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        slept[task.get_name()] = max(seconds, slept.get(task.get_name(), 0.0))
        await waiting(seconds)

    waiting = asyncio.sleep
    monkeypatch.setattr(links, "keep_running", keep)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    settings = Settings.load({}, url=server, namespace=namespace, lease=240.0)
    async with Worker([nothing], settings=settings), ToolBus(settings=settings):
        await eventually(lambda: {"toolbus-upkeep", "toolbus-replies"} <= slept.keys())
    assert max(slept["toolbus-upkeep"], slept["toolbus-replies"]) > 60
    assert [name for name in kept if slept.get(name, 0.0) > max(5.0, kept[name])] == []


async def test_a_cancellation_from_within_is_a_failure() -> None:
    """A task that cancels itself, by a bug, must not end unseen."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise asyncio.CancelledError

    await keep_running("work", work, every=0)
    assert begun == 2


async def test_cancelling_is_no_failure() -> None:
    """A cancelled task ends at once."""
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("work", work, every=0))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("ends", ["one", "other", "time", "caller"])
async def test_the_first_of_two_works_ends_the_other(ends: str) -> None:
    """Neither runs on when the first has ended, the seconds are over, or the caller is cancelled, and what failed is returned."""
    begun, cleaned = asyncio.Event(), list[str]()

    async def work(name: str) -> str:
        try:
            begun.set()
            if name == ends:
                raise ValueError(name)
            await asyncio.Event().wait()
        finally:
            # The end of what was cancelled is waited for, too.
            await asyncio.sleep(0)
            cleaned.append(name)
        return name

    racing = asyncio.create_task(either(work("one"), work("other"), within=0.01 if ends == "time" else None))
    if ends == "caller":
        await begun.wait()
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
    else:
        works = await racing
        assert [each.cancelled() for each in works] == [ends != "one", ends != "other"]
        assert [str(each.exception()) for each in works if not each.cancelled()] == [ends] * (ends != "time")
    assert sorted(cleaned) == ["one", "other"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_work_beside_a_block_ends_with_it(fails: bool) -> None:
    """It runs while the block does, and has cleaned up when the block is left, in whatever way."""
    told: list[str] = []

    async def work() -> None:
        told.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("cleaned up")

    with contextlib.suppress(ValueError):
        async with beside(work()) as task:
            await asyncio.sleep(0)
            assert told == ["begun"]
            if fails:
                raise ValueError("the block")
    assert told == ["begun", "cleaned up"]
    assert task.cancelled()


async def test_a_failure_beside_a_block_is_not_raised_by_it() -> None:
    """The block can look at it."""
    async with beside(Work(1)()) as task:
        await asyncio.wait({task})
        with pytest.raises(ValueError, match="failure 1"):
            task.result()


async def test_works_that_are_cancelled_have_ended() -> None:
    """All of them are waited for, also when one raises something else."""

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise ValueError("it was cancelled")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.Event().wait())]
    await asyncio.sleep(0)
    await cancelled(*tasks)
    assert isinstance(tasks[0].exception(), ValueError)
    assert tasks[1].cancelled()
    await cancelled()
