"""The confirmation requests of one event loop, for ``memory://``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from toolbus.bus.broker.confirmations import Watchers, closed
from toolbus.bus.values.confirmations import MARK, MOST_OPEN, ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.results import ToolError


class MemoryConfirmations:
    """The confirmation requests of a namespace within one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ConfirmationRequest, asyncio.Future[ConfirmationAnswer]]] = {}
        self._answered: dict[str, tuple[ConfirmationAnswer, float]] = {}
        self._watchers = Watchers()

    async def ask(
        self, request: ConfirmationRequest, seconds: float, opened: Callable[[], None] | None = None
    ) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when there is no answer within ``seconds``. ``opened`` is called in between.

        Raises:
            ToolError: ``overloaded``, because too many requests wait.
        """
        if len(self._open) >= MOST_OPEN:
            message = f"{MOST_OPEN} confirmation requests wait for an answer and there is room for no more"
            raise ToolError(message, type="overloaded", code="confirmations", retryable=True)
        answer: asyncio.Future[ConfirmationAnswer] = asyncio.get_running_loop().create_future()
        now = time.time()
        stamped = msgspec.structs.replace(request.bounded(), asked_at=now, expires_at=now + seconds)
        self._open[request.id] = stamped, answer
        self._watchers.look()
        if opened is not None:
            opened()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.wait([answer])
            return answer.result().to(request) if answer.done() else None
        finally:
            if self._open.pop(request.id, None) is not None:
                self._watchers.look()

    async def pending(self) -> list[ConfirmationRequest]:
        """Return the open requests, the oldest first, without the ``whole`` of their arguments."""
        return [msgspec.structs.replace(request, whole="") for request, _ in self._open.values()]

    async def get(self, id: str) -> ConfirmationRequest:
        """Return one open request; raises ConfirmationClosed when it is not open."""
        if id not in self._open:
            raise closed(id, self._answer_of(id))
        return self._open[id][0]

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; raises ConfirmationClosed when it is not open, or another answer won."""
        if id not in self._open:
            raise closed(id, self._answer_of(id))
        _, waiting = self._open.pop(id)
        answer = answer.bounded()
        self._answered[id] = answer, time.monotonic() + MARK
        if len(self._answered) > MOST_OPEN:
            del self._answered[next(iter(self._answered))]
        waiting.set_result(answer)
        self._watchers.look()

    async def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Yield each request once: those that are open, and then new ones as they come."""
        async for request in self._watchers.watch(self.pending):
            yield request

    def _answer_of(self, id: str) -> ConfirmationAnswer | None:
        answer, kept_until = self._answered.get(id, (None, 0.0))
        return answer if kept_until > time.monotonic() else None
