"""The endpoint of a gateway that begins with its first request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolbus.edges.mcp.http import LazyEndpoint

pytestmark = pytest.mark.anyio


class Failing:
    """An endpoint that can't begin the first time."""

    def __init__(self) -> None:
        self.begun = self.answered = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        self.begun += 1
        if self.begun == 1:
            raise RuntimeError("not now")
        yield

    def close_streams(self) -> None:
        """Nothing is open."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.answered += 1


async def test_requests_learn_that_the_endpoint_could_not_begin() -> None:
    """All requests that wait for a failed beginning fail with its reason, and a later one begins anew."""
    made = Failing()
    endpoint = LazyEndpoint(lambda: made, asyncio.Event())
    async with asyncio.timeout(10):
        first = await asyncio.gather(*(endpoint({}, None, None) for _ in range(3)), return_exceptions=True)
        await endpoint({}, None, None)
    assert [str(error) for error in first] == ["not now"] * 3
    assert (made.begun, made.answered) == (2, 1)
    endpoint._running.cancel()
