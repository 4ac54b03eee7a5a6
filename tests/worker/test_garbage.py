"""Looking for garbage, which blocks the event loop, is over when a worker is first called."""

from __future__ import annotations

import asyncio
import gc

import pytest

from toolbus import Settings, ToolBus, Worker, tool

pytestmark = pytest.mark.anyio


@tool(service="garbage", effect="read")
async def collections() -> str:
    """Be there."""
    return "here"


async def test_garbage_is_looked_for_before_a_worker_serves(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with much in its memory it takes seconds, in which a registered worker would neither answer nor beat."""
    settings = Settings.load({}, url="memory://", namespace=namespace, grace=0.1)
    worker = Worker(collections, settings=settings)
    found: list[bool] = []
    monkeypatch.setattr(gc, "collect", lambda: found.append(worker.healthy))
    async with ToolBus(settings=settings) as bus:
        running = asyncio.create_task(worker.run())
        await bus.wait_for_tool("collections")
        assert (await bus.call("collections")).output == "here"
        assert found == [False]
        running.cancel()
        await asyncio.wait([running])
