"""Keep sessions of handlers that run without a bus."""

from __future__ import annotations

import asyncio

from toolbus.broker.protocols import session_of
from toolbus.envelope import Request
from toolbus.worker.sessions.session import Session, SessionRun


class TriedSessions:
    """The sessions of one service's calls, which last until the environment is closed."""

    def __init__(self) -> None:
        self._first: dict[Session, str] = {}

    def start(self, run: SessionRun) -> asyncio.Task[None]:
        """Start a call within its session."""
        request = run.delivery.request
        pair = session_of(request)
        if pair is not None:
            self._first.setdefault(Session(*pair), request.id)
        return asyncio.get_running_loop().create_task(run.execute())

    def opened_by(self, request: Request) -> bool:
        """Return whether a call is the one that opened its session."""
        pair = session_of(request)
        return pair is not None and self._first.get(Session(*pair)) == request.id

    def seen(self) -> list[Session]:
        """Return every session that was opened."""
        return list(self._first)
