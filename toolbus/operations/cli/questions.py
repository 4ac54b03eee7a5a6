"""``HandlerQuestions``: what a running handler wants to know, asked at the terminal."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from toolbus import ToolBus
from toolbus.bus.client.confirmations import Confirmation
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.display import visible
from toolbus.bus.values.events import Answered, Asked, Event
from toolbus.operations.cli.output import say
from toolbus.operations.cli.prompt import TerminalPrompt


class HandlerQuestions:
    """Prints the questions of one call, and asks the person at the terminal, if there is one; others may answer first.

    Args:
        name: the tool as it was called.
        tool: the tool as it is known; None is asked about elsewhere only.
    """

    def __init__(self, bus: ToolBus, name: str, tool: Tool | None, arguments: Mapping[str, Any], *, user: str, session: str) -> None:
        self._bus = bus
        self._name = name
        self._tool = tool if sys.stdin.isatty() else None
        self._arguments = arguments
        self._user = user
        self._session = session
        self._prompt = TerminalPrompt(lambda text: say(f"{text}\n[y/N]", err=True))
        self._asking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def hear(self, event: Event) -> bool:
        """Take in an event of the call; return whether it was about a question."""
        if not isinstance(event, (Asked, Answered)):
            return False
        await self._end()
        if isinstance(event, Asked):
            asks = f"{self._name} asks: {visible(event.question)}"
            say(f"{asks}\nit waits {math.ceil(event.timeout)} s: toolbus confirm allow {event.id}", err=True)
            if self._tool is not None:
                self._asking = asyncio.create_task(self._ask(self._tool, event))
        return True

    async def _ask(self, tool: Tool, event: Asked) -> None:
        confirmation = Confirmation(
            event.id,
            "",
            tool,
            self._arguments,
            user=self._user,
            session=self._session,
            timeout=event.timeout,
            question=event.question,
            limit=self._bus.settings.max_request,
        )
        await self._bus.confirmations.relay(confirmation, self._prompt.ask)

    async def _end(self) -> None:
        """Ask no more: it was answered, or the call has ended."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None
