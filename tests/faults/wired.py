"""Tools behind networks that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus import tool


@tool(service="wired", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="wired", effect="read")
async def count(n: int, delay: float) -> Any:
    """Count slowly."""
    for number in range(n):
        yield f"{number} "
        await asyncio.sleep(delay)
