"""The tools of the contest of gateways: they change nothing, and say so, as a service of toolbus would."""

from __future__ import annotations

import asyncio

from toolbus import tool


@tool(effect="read")
async def echo(text: str) -> str:
    """Return the argument."""
    return text


@tool(effect="read")
async def nap(seconds: float) -> str:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)
    return "slept"
