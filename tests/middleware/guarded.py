"""Tools behind middleware, and calls of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from tests.contract import Place
from toolbus import ToolBus, ToolError, Worker, invocation, tool
from toolbus.bus.middleware import Middleware, ToolCall

runs: list[str] = []


@tool(service="limited", effect="read")
async def read(text: str = "", fail: bool = False) -> dict[str, Any]:
    """Read."""
    runs.append(text)
    if fail:
        raise ToolError("not now", retryable=True)
    return {"text": text, "run": len(runs)}


@tool(service="limited")
async def write(text: str = "") -> dict[str, Any]:
    """Write."""
    runs.append(text)
    return {"run": len(runs)}


@tool(service="limited", effect="once")
async def slow_once() -> str:
    """Take for ever."""
    await asyncio.Event().wait()
    return ""


@tool(service="limited", effect="read")
async def slow(raises: bool = False) -> str:
    """Take for ever."""
    if raises:
        raise TimeoutError("my own")
    await asyncio.Event().wait()
    return ""


heard = threading.Event()


@tool(service="limited", effect="read")
async def trickle() -> AsyncIterator[str]:
    """Say a little and hang."""
    yield "é"
    yield "é"
    await asyncio.Event().wait()


@tool(service="limited", effect="read")
def slow_thread() -> str:
    """Take until told."""
    while not invocation().cancelled:
        time.sleep(0.01)
    heard.set()
    return ""


def serving(place: Place, *middleware: Middleware, **changes: Any) -> Worker:
    """A worker with every tool of this module and middleware."""
    return Worker([read], settings=place.with_(**changes), middleware=middleware)


async def error_of(bus: ToolBus, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """The error of a call that must fail."""
    result = await bus.call(name, arguments, **options)
    assert result.error is not None
    return result.error


def call_of(name: str, tallies: Any = None) -> ToolCall:
    """A call of one of the tools at a worker, as middleware sees it."""
    return ToolCall(
        id="1", tool=name, service="limited", user="", session="", arguments={}, config={}, effect="read", side="handler", attempt=1,
        tallies=tallies,
    )  # fmt: skip
