"""Wait for works: no longer than so many seconds, for the first of two, for all of several, or for one that must be done in any case.

Or have one done beside a block, and end several.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def at_most(seconds: float | None, work: Awaitable[object]) -> None:
    """Wait for a work, and no longer than so many seconds (None: for ever); then it is cancelled."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def either(one: Awaitable[A], other: Awaitable[B], *, within: float | None = None) -> tuple[asyncio.Future[A], asyncio.Future[B]]:
    """Wait until one of two works has ended, or the seconds are over; cancel what still runs, and wait for its end, too.

    Returns:
        Both, which are done: what was cancelled had not ended.
    """
    works = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        await asyncio.wait(works, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*works)
    return works


async def cancelled(*works: asyncio.Future[Any]) -> None:
    """Cancel works, and wait for the end of all of them, whatever they raise."""
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, A]) -> AsyncIterator[asyncio.Task[A]]:
    """Do a work in a task of its own beside the block; at its end it is cancelled, and its own end waited for.

    What becomes of its failure is the block's to say: it is not raised here.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def each_of(works: Iterable[Awaitable[object]]) -> None:
    """Do several works side by side, each to its end, whatever becomes of the others.

    Raises:
        Exception: that of the first one which failed.
    """
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def to_the_end(work: Coroutine[Any, Any, A]) -> A:
    """Wait for a work that a cancellation of this wait does not stop; it is raised when the work is done."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()
    raise cancelled
