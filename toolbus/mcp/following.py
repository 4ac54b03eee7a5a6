"""Follow a running call for one request: its progress, and the questions of its handler."""

from __future__ import annotations

import asyncio
import contextlib

from toolbus.client.calls.call import Call
from toolbus.confirmations import ConfirmationRequest
from toolbus.events import Answered, Asked, Event
from toolbus.mcp.caller import Context
from toolbus.mcp.client import Client
from toolbus.mcp.progress import ProgressReport
from toolbus.mcp.questions import OpenQuestions, asked_by_client


class Following:
    """Reads the events of a call until it ends, its time here is up, or its handler asks what only a new request can answer.

    Args:
        context: the request.
        client: who sent it.
        questions: those of handlers.
        call: entered by the caller.
        answered: ids of questions that are answered already.

    Attributes:
        questions: what is asked and waits for an answer in the client's next request.
    """

    def __init__(
        self, context: Context, client: Client, questions: OpenQuestions, call: Call, answered: frozenset[str] = frozenset()
    ) -> None:
        self._context = context
        self._client = client
        self._open = questions
        self._call = call
        self._answered = answered
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.questions: list[ConfirmationRequest] = []

    async def run(self, seconds: float | None) -> None:
        """Read the events, for at most ``seconds``; the call has not ended if it must go on elsewhere."""
        report = ProgressReport(self._context) if self._client.progress else None
        async with asyncio.TaskGroup() as group:
            if report is not None:
                group.create_task(report.send())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._read(report, group)
            if report is not None:
                report.end()
            for task in self._asking.values():
                task.cancel()

    async def _read(self, report: ProgressReport | None, group: asyncio.TaskGroup) -> None:
        async for event in self._call.events():
            if report is not None:
                report.hear(event)
            if isinstance(event, (Asked, Answered)) and self._client.elicits and await self._question(event, group):
                return

    async def _question(self, event: Event, group: asyncio.TaskGroup) -> bool:
        """Let the client's user be asked; return whether this request must end for that."""
        if isinstance(event, Answered):
            task = self._asking.pop(event.id, None)
            if task is not None:
                task.cancel()
            return False
        if not isinstance(event, Asked) or event.id in self._answered:
            return False
        request = await self._open.open(event.id)
        if request is None:
            return False
        if self._client.modern:
            self.questions.append(request)
            return True
        self._asking[event.id] = group.create_task(self._ask(request))
        return False

    async def _ask(self, request: ConfirmationRequest) -> None:
        said = await asked_by_client(self._context, str(request))
        if said is not None:
            await self._open.answer(request, allow=said)
