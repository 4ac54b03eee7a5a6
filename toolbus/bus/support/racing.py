"""Run two works beside each other until one of them has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def either(one: Awaitable[A], other: Awaitable[B], *, within: float | None = None) -> tuple[asyncio.Future[A], asyncio.Future[B]]:
    """Wait until one of two works has ended, or the seconds are over; cancel what still runs, and wait for its end, too.

    Returns:
        Both, which are done: what was cancelled had not ended.
    """
    works = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        await asyncio.wait(works, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    return works
