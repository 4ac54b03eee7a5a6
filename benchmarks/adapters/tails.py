"""The tools of ``benchmarks.tails``: a quick one that is watched, and the work of others beside it."""

from __future__ import annotations

import asyncio
import time

from toolbus import tool


@tool(service="watched", effect="read")
async def stamp(text: str) -> str:
    """Return when the handler ran, by the clock that all processes share.

    Args:
        text: carried along.
    """
    return f"{time.monotonic():.9f}"


@tool(service="bulk", effect="read")
async def turn_round(text: str) -> str:
    """Return a large text the other way round.

    Args:
        text: any.
    """
    return text[::-1]


@tool(service="batch", effect="read")
async def nap(seconds: float) -> str:
    """Wait.

    Args:
        seconds: how long.
    """
    await asyncio.sleep(seconds)
    return "slept"
