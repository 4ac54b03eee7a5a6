"""An isolated tool with a service, in a module of its own because other processes import it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from toolbus import provide, tool


class Engine:
    """Something that each child must have for itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


async def engine() -> AsyncIterator[Engine]:
    """Make an engine with a task of its own."""
    beating = asyncio.create_task(asyncio.sleep(600))
    yield Engine(os.getpid())
    beating.cancel()


provide(Engine, engine)


@tool(effect="read", isolation="process")
def iso_engine(n: int, engine: Engine) -> list[int]:
    """Return the number, the process that made the engine, and the process that runs this."""
    return [n, engine.pid, os.getpid()]
