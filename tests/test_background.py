"""Background tasks that begin again."""

from __future__ import annotations

import asyncio

import pytest

from toolbus import ToolbusError, background
from toolbus.background import MOST_FAILURES, keep_running

pytestmark = pytest.mark.anyio


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
    await keep_running("work", work)
    assert work.begun == MOST_FAILURES


async def test_work_that_fails_for_good_is_given_up() -> None:
    """After so many failures in a row the last one is told, with the name of what failed."""
    work = Work(MOST_FAILURES)
    with pytest.raises(ToolbusError, match=f"work failed {MOST_FAILURES} times in a row, at last with ValueError: failure {MOST_FAILURES}"):
        await keep_running("work", work)
    assert work.begun == MOST_FAILURES


async def test_failures_that_are_far_apart_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has worked for a while starts counting failures from zero."""
    monkeypatch.setattr(background, "_SETTLED", -1.0)
    work = Work(3 * MOST_FAILURES)
    await keep_running("work", work)
    assert work.begun == 3 * MOST_FAILURES + 1


async def test_a_cancellation_from_within_is_a_failure() -> None:
    """A task that cancels itself, by a bug, must not end unseen."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise asyncio.CancelledError

    await keep_running("work", work)
    assert begun == 2


async def test_cancelling_is_no_failure() -> None:
    """A cancelled task ends at once."""
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("work", work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
