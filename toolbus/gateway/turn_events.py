"""Write what happens to the calls of a turn as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from toolbus.client.executor.observers import Confirming, Requested, ToolEvent
from toolbus.encoding import encode_json
from toolbus.events import Answered, Asked, Finished, Text
from toolbus.gateway.sse import COMMENT, named_event
from toolbus.safe_text import type_name

HEARTBEAT = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy takes the connection for dead."""

_MOST_WAITING = 16


def event(kind: str, data: Any) -> bytes:
    """Return a server-sent event with JSON data."""
    return named_event(kind.encode(), encode_json(data))


def of_call(told: ToolEvent) -> bytes:
    """Return something that happened to one call: named after what happened, with the call's id, tool and index."""
    about: dict[str, Any] = {"id": told.id, "tool": told.tool, "index": told.index}
    match told.event:
        case Text(text):
            return event("text", {**about, "text": text})
        case Requested(arguments, changes):
            return event("requested", {**about, "arguments": arguments, "changes": changes})
        case Confirming(confirmation):
            asked = {"confirmation": confirmation.id, "question": confirmation.request.question, "timeout": confirmation.timeout}
            return event("confirm", {**about, **asked, "arguments": confirmation.arguments})
        case Asked(ident, question, timeout):
            return event("confirm", {**about, "confirmation": ident, "question": question, "timeout": timeout})
        case Answered(ident, allowed):
            return event("answered", {**about, "confirmation": ident, "allowed": allowed})
        case Finished(result):
            return event("end", {**about, "success": result.success, "error": result.error})
        case other:
            return event(type_name(other).lower(), {**about, **msgspec.structs.asdict(other)})


async def with_heartbeats(events: AsyncGenerator[bytes, None], every: float = HEARTBEAT) -> AsyncIterator[bytes]:
    """Yield the events, and a comment whenever none came for a while; leaving early ends what makes them."""
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)

    # One task makes all of them, because a task group belongs to the task that entered it.
    async def make() -> None:
        async with aclosing(events):
            async for found in events:
                await waiting.put(found)
        await waiting.put(None)

    making = asyncio.create_task(make())
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(waiting.get())
            awaited: set[asyncio.Task[Any]] = {coming} if making.done() else {coming, making}
            done, _ = await asyncio.wait(awaited, timeout=every, return_when=asyncio.FIRST_COMPLETED)
            if making in done:
                making.result()
            if coming in done:
                found, coming = coming.result(), None
                if found is None:
                    return
                yield found
            elif not done:
                yield COMMENT
    finally:
        for task in (making, coming):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
