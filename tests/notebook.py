"""Services that keep notes for each session, for the tests of sessions."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus import Session, ToolService, invocation, tool


class Notes(ToolService):
    """Keeps the notes of each session, as long as it lasts."""

    id = "notes"

    def __init__(self, name: str = "one", log: list[Any] | None = None) -> None:
        self.name = name
        self.notes: dict[tuple[str, str], list[str]] = {}
        self.cleaned: list[Session | None] = []
        self.new: list[bool] = []
        self.failing: set[str] = set()
        self.slow: set[str] = set()
        self.go = asyncio.Event()
        self.running = 0
        self.log = [] if log is None else log

    @tool(effect="read")
    async def note(self, text: str) -> str:
        """Add a note, and say who keeps how many."""
        call = invocation()
        self.new.append(call.session_is_new)
        notes = self.notes.setdefault((call.user, call.session), [])
        notes.append(text)
        self.log.append((self.name, call.user, call.session))
        return f"{self.name} {len(notes)}"

    @tool(effect="read", sequential=False)
    async def wait(self) -> str:
        """Run until the test says so."""
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return self.name

    async def cleanup(self, session: Session | None = None) -> None:
        """Forget the session's notes."""
        if session is not None:
            if session.id in self.slow:
                await self.go.wait()
            self.notes.pop(session)
        self.cleaned.append(session)
        if session is not None and session.id in self.failing:
            raise RuntimeError("cleaning up failed")


class StickyNotes(Notes):
    """The same, at one worker for each session."""

    sticky_sessions = True


class Plain(ToolService):
    """Cleans up once, in the old way."""

    id = "plain"
    cleanups = 0

    @tool(effect="read")
    async def ping(self) -> str:
        """Answer."""
        return str(invocation().session_is_new)

    async def cleanup(self) -> None:
        """Count."""
        self.cleanups += 1
