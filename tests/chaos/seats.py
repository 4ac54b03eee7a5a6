"""Services whose calls of one session go to one worker: in one the state ends with its worker, in the other it is restored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from toolbus import ToolService, invocation, tool

if TYPE_CHECKING:
    # Another version that takes part in a run may not have it.
    from toolbus import Session


class Seats(ToolService):
    """Answers with what it knows of the session: a token that is drawn when it begins here, and how many calls it has had.

    Args:
        record: writes an execution down, and gives the number of this process.
    """

    id = "seats"
    sticky_sessions = True

    def __init__(self, record: Callable[[str], AbstractContextManager[int]]) -> None:
        self._record = record
        self._tokens: dict[tuple[str, str], str] = {}
        self._calls: dict[tuple[str, str], int] = {}

    @tool(effect="idempotent")
    async def sit(self, key: str, seconds: float) -> str:
        """Count a call in its session."""
        with self._record(key) as pid:
            call = invocation()
            session = (call.user, call.session)
            token = self._tokens.setdefault(session, f"{pid}.{time.monotonic_ns()}")
            self._calls[session] = count = self._calls.get(session, 0) + 1
            await asyncio.sleep(seconds)
            return f"{key}:{token}:{count}"

    async def cleanup(self, session: Session | None = None) -> None:
        """Forget a session."""
        if session is not None:
            self._tokens.pop(session, None)
            self._calls.pop(session, None)


class Kept(ToolService):
    """Answers as ``Seats`` does, from a state that outlives its worker, and with the calls that are in it twice.

    Args:
        record: writes an execution down, and gives the number of this process.
    """

    id = "kept"
    session_lost = "restore"

    def __init__(self, record: Callable[[str], AbstractContextManager[int]]) -> None:
        self._record = record

    def open_session(self, session: Session) -> dict[str, Any]:  # type: ignore[override]
        """Begin with no calls."""
        return {"token": "", "calls": []}

    def save_session(self, session: Session, state: dict[str, Any]) -> dict[str, Any]:
        """Keep all of it."""
        return state

    def load_session(self, session: Session, saved: dict[str, Any]) -> dict[str, Any]:
        """Go on with what was kept."""
        return saved

    @tool(effect="idempotent")
    async def stay(self, key: str, seconds: float) -> str:
        """Count a call in its session."""
        with self._record(key) as pid:
            state = invocation().state
            state["token"] = state["token"] or f"{pid}.{time.monotonic_ns()}"
            calls = state["calls"]
            calls.append(key)
            count, twice = len(calls), sorted({each for each in calls if calls.count(each) > 1})
            await asyncio.sleep(seconds)
            return ":".join((key, state["token"], str(count), *twice))
