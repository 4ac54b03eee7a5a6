"""``Answering``: hand the messages of the windows to the service agent, one at a time in each window."""

from __future__ import annotations

import asyncio
import random

from toolbus import telemetry
from toolbus.client.bus import ToolBus
from toolbus.im.window import Pending, Window
from toolbus.results import ErrorInfo, ToolResult

_FIRST, _MOST = 0.5, 30.0
# These ends of a call say nothing of the message: it is asked again, under the same key.
_AGAIN = frozenset({"unavailable", "overloaded", "cancelled", "deadline_exceeded", "slow_consumer", "outcome_unknown"})


class Answering:
    """Gets answers of the chat tool.

    Args:
        bus: is open.
        tool: name of the tool that answers.
        user: on whose behalf.
        contact: this contact's name.
    """

    def __init__(self, bus: ToolBus, tool: str, user: str, contact: str) -> None:
        self._bus = bus
        self._tool = tool
        self._user = user
        self._contact = contact

    async def answer(self, window: Window, entry: Pending) -> str:
        """Return the answer of a message; while nobody can answer, it waits and asks again."""
        message = entry.message
        pause = _FIRST
        while True:
            result = await self._bus.call(
                self._tool,
                {"message": message.content, "chat_id": window.chat_id},
                session=window.chat_id,
                user=self._user,
                idempotency_key=window.reply(entry, self._contact).id,
            )
            error = result.error
            if error is None:
                return _said(result)
            nobody_there = error.type == "not_found" and error.origin == "bus"
            if not (nobody_there or error.type in _AGAIN or error.retryable):
                return f"I can't answer this: {error.message or error.code or error.type}"
            telemetry.log.warning("im.unanswered", chat=window.chat_id, error=str(error), retry_in=pause)
            await asyncio.sleep(_wait(error, pause))
            pause = min(2 * pause, _MOST)


def _said(result: ToolResult) -> str:
    said = result.data.get("response") if isinstance(result.data, dict) else None
    text = said if isinstance(said, str) else result.output or ""
    return text if text.strip() else "I have no answer to this."


def _wait(error: ErrorInfo, pause: float) -> float:
    jitter = random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    return max(pause * jitter, min(error.retry_after or 0.0, _MOST))
