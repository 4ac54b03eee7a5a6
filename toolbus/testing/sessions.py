"""Keep sessions of handlers that run without a bus."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from toolbus.broker.protocols import Delivery, session_of
from toolbus.encoding import encode_data
from toolbus.envelope import Request
from toolbus.worker.serving.handlers import Served
from toolbus.worker.sessions.session import Session, SessionRun


class TriedSessions:
    """The sessions of one service's calls, which last until the environment is closed."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._first: dict[Session, str] = {}
        self._values: dict[Session, Any] = {}
        self._lock = asyncio.Lock()

    def start(self, run: SessionRun) -> asyncio.Task[None]:
        """Start a call within its session."""
        request = run.delivery.request
        pair = session_of(request)
        if pair is not None:
            self._first.setdefault(Session(*pair), request.id)
        return asyncio.get_running_loop().create_task(self._execute(run, None if pair is None else Session(*pair)))

    async def _execute(self, run: SessionRun, session: Session | None) -> None:
        if session is not None and self._served.opens_sessions:
            try:
                async with self._lock:
                    if session not in self._values:
                        self._values[session] = await self._served.open_session(session, dict(run.delivery.request.initial or {}))
            except Exception as error:  # noqa: BLE001 - the service's own code
                run.stop(run.error_info(error))
                return
        await run.execute()

    def opened_by(self, request: Request) -> bool:
        """Return whether a call is the one that opened its session."""
        pair = session_of(request)
        return pair is not None and self._first.get(Session(*pair)) == request.id

    def token(self, request: Request) -> str:
        """Return nothing: no state is ever lost here."""
        return ""

    def value(self, request: Request) -> Any:
        """Return the state of a call's session, as its service made it."""
        pair = session_of(request)
        return None if pair is None else self._values.get(Session(*pair))

    def enter(self, delivery: Delivery) -> None:
        """Do nothing: no call is run again here."""

    def forget(self, delivery: Delivery) -> None:
        """Do nothing: no snapshot is kept here."""

    async def leave(self, delivery: Delivery, *, keep: bool, done: bool) -> bool:
        """Let the service write the state down, and read it back."""
        pair = session_of(delivery.request)
        if pair is not None and keep:
            session = Session(*pair)
            saved = json.loads(encode_data(await self._served.save_session(session, self._values.get(session))))
            self._values[session] = await self._served.load_session(session, saved)
        return True

    def states(self) -> list[tuple[Session, Any]]:
        """Return every session that was opened, with its state."""
        return [(session, self._values.get(session)) for session in self._first]
