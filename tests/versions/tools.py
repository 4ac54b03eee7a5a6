"""Tools whose answers can be checked, for both releases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from toolbus import tool


@tool(service="versions", effect="idempotent")
async def versions_echo(text: str) -> str:
    """Give a text back after a moment."""
    await asyncio.sleep(0.02)
    return text


@tool(service="versions", effect="idempotent")
async def versions_count(to: int) -> AsyncIterator[str]:
    """Count in pieces."""
    for number in range(to):
        yield f"{number} "
        await asyncio.sleep(0.01)


@tool(service="versions", effect="once")
async def versions_mark(key: str) -> str:
    """Leave one line for each run in the file that ``VERSIONS_MARKS`` names."""
    _note(key)
    await asyncio.sleep(0.02)
    return key


def _note(key: str) -> None:
    with Path(os.environ["VERSIONS_MARKS"]).open("ab") as file:
        file.write(f"{key}\n".encode())
