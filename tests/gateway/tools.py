"""Tools that the gateway's tests call; a worker serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from toolbus import Blob, Progress, ToolError, ToolResult, invocation, tool

_seen: dict[str, int] = {}


def note(name: str) -> None:
    """Count something that happened, under the text that a test chose."""
    _seen[name] = _seen.get(name, 0) + 1


@tool(effect="read", category="letters", groups=["words"])
async def echo(text: str) -> str:
    """Return a text as it is."""
    return text


@tool(effect="read", category="numbers")
async def add(left: int, right: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": left + right}


@tool(effect="read")
async def picture() -> AsyncIterator[Any]:
    """Draw a picture, which is some bytes."""
    yield Blob("image/png", b"\x89PNG\x00\xff")
    yield ToolResult(output="drawn")


@tool(effect="read")
async def refuses(code: str) -> str:
    """Fail with a failure of its own."""
    raise ToolError("not today", code=code)


@tool(effect="read")
async def crashes() -> str:
    """Raise what nobody expected."""
    raise RuntimeError("out of order")


@tool(effect="read")
async def counts(upto: int, pause: float = 0.0, mark: str = "") -> AsyncIterator[Any]:
    """Yield numbers, one a line.

    Args:
        upto: how many
        pause: seconds between them
        mark: what is noted when it starts, and with ``-cancelled`` when it is cancelled
    """
    note(mark)
    try:
        for number in range(upto):
            yield f"{number}\n"
            await asyncio.sleep(pause)
    except (asyncio.CancelledError, GeneratorExit):
        note(f"{mark}-cancelled")
        raise


@tool(effect="read")
async def everything() -> AsyncIterator[Any]:
    """Yield one of each kind."""
    yield "a\n"
    yield Progress(1, 2, "half")
    yield Blob("text/plain", b"b")
    yield "data: c\r\n\r\nevent: end\u2028\x00"
    yield ToolResult(data={"n": 1})


@tool(effect="once")
async def sleeps(seconds: float, mark: str = "") -> str:
    """Sleep.

    Args:
        seconds: how long
        mark: what is noted when it starts, and with ``-cancelled`` when it is cancelled
    """
    note(mark)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"{mark}-cancelled")
        raise
    return "rested"


@tool(effect="read")
async def seen(name: str) -> int:
    """Return how often something was noted.

    Args:
        name: what
    """
    return _seen.get(name, 0)


@tool(effect="read")
async def caller() -> dict[str, str]:
    """Return who calls."""
    now = invocation()
    return {"user": now.user, "session": now.session, "key": now.idempotency_key}


@tool(effect="read")
async def chat(message: str, chat_id: str) -> AsyncIterator[Any]:
    """Answer a message."""
    note(f"chat-{invocation().session}")
    if message == "fail":
        raise ToolError("speechless")
    yield f"{chat_id} said "
    yield f"{message}"


@tool(effect="read")
async def floods(mark: str) -> AsyncIterator[Any]:
    """Yield text as quickly as it is taken.

    Args:
        mark: what is noted with ``-cancelled`` when it is cancelled
    """
    try:
        while True:
            yield "x" * 10_000
            await asyncio.sleep(0.001)
    except (asyncio.CancelledError, GeneratorExit):
        note(f"{mark}-cancelled")
        raise
