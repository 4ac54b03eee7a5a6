"""The tools that a worker under test must serve, by toolbus's own worker: ``toolbus worker toolbus.conformance.tools``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from toolbus.worker.definition.function import tool
from toolbus.worker.definition.service import ToolService


async def _count(to: int, delay: float) -> AsyncIterator[str]:
    for number in range(1, to + 1):
        yield f"{number} "
        await asyncio.sleep(delay)


class Conformance(ToolService):
    """Serves the tools that `toolbus conformance worker` calls."""

    id = "conformance"

    @tool("conformance-echo", effect="read")
    async def echo(self, text: str) -> str:
        """Return a text."""
        return text

    @tool("conformance-count", effect="read")
    async def count(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, one number each `delay` seconds."""
        async for part in _count(to, delay):
            yield part

    @tool("conformance-once", effect="once")
    async def once(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, and never twice."""
        async for part in _count(to, delay):
            yield part
