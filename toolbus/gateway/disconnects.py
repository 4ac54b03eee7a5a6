"""End work whose client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from toolbus.gateway.problems import Problem

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled when the client disconnects; the body must have been read.

    Raises:
        Problem: 499, which nobody reads.
    """
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Problem(499, "disconnected", "the client has gone")
        return running.result()
    finally:
        leaving.cancel()
        running.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
