"""An event loop that something blocks is told of, once, with the place."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import pytest

from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.telemetry.output import FIELDS

pytestmark = pytest.mark.anyio


@tool(effect="read")
async def block_the_loop(seconds: float) -> str:
    """Sleep where others wait."""
    time.sleep(seconds)  # noqa: ASYNC251 - the mistake that is told of
    return "done"


@tool(effect="read")
async def hold_the_interpreter() -> str:
    """Match for a second or two, which holds the interpreter."""
    letters, took = 18, 0.0
    while took < 1.0:
        began = time.monotonic()
        re.match("(a+)+$", "a" * letters + "b")
        took = time.monotonic() - began
        letters += 1
    return "done"


def blocked(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return what was logged of blocked loops."""
    events = [getattr(line, FIELDS) for line in caplog.records if hasattr(line, FIELDS)]
    return [event for event in events if event["event"] == "worker.loop_blocked"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", ["block_the_loop", "hold_the_interpreter"])
async def test_a_blocked_loop_is_told_once_with_the_place(namespace: str, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """At the usual lease, and within a second, not when the worker would lose its lease."""
    settings = Settings.load({}, url="memory://", namespace=namespace)
    arguments = {"seconds": 1.5} if name == "block_the_loop" else {}
    with caplog.at_level(logging.WARNING, "toolbus"):
        async with Worker([block_the_loop, hold_the_interpreter], settings=settings), ToolBus(settings=settings) as bus:
            assert (await bus.call(name, arguments)).output == "done"
            # What holds the interpreter is told of when it ends.
            await eventually(lambda: blocked(caplog))
    events = blocked(caplog)
    assert events[0]["seconds"] >= 0.5
    if name == "block_the_loop":
        assert len(events) == 1
        assert "time.sleep(seconds)" in events[0]["stack"]


@pytest.mark.usefixtures("slow")
async def test_a_busy_loop_is_not_told_of(namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    """Many short steps leave the loop time to answer."""
    settings = Settings.load({}, url="memory://", namespace=namespace)
    with caplog.at_level(logging.WARNING, "toolbus"):
        async with Worker([block_the_loop], settings=settings), ToolBus(settings=settings) as bus:
            for _ in range(40):
                await asyncio.gather(*(bus.call("block_the_loop", {"seconds": 0.01}) for _ in range(4)))
    assert blocked(caplog) == []
