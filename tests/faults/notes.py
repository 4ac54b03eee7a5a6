"""Processes for the fault tests of sessions.

``python -m tests.faults.notes worker URL NAMESPACE LEASE FILE``: a sticky service that keeps notes and writes the ends of sessions to FILE;
``late`` instead of ``worker``: it beats once between its registration and the moment from which its beats name the service;
``python -m tests.faults.notes agent URL NAMESPACE LEASE SESSION``: takes a note in a session, says so, and waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from toolbus import Session, Settings, ToolBus, ToolService, Worker, invocation, tool
from toolbus.bus.broker.take.requests import RequestStream
from toolbus.bus.broker.take.sessions import Ownership
from toolbus.bus.broker.take.wake_channel import WakeChannel


class Notes(ToolService):
    """Keeps the notes of each session in the process that has it."""

    id = "notes"
    sticky_sessions = True

    def __init__(self, ends: Path | None = None) -> None:
        self._notes: dict[tuple[str, str], int] = {}
        self._ends = ends

    @tool(effect="read")
    async def note(self, seconds: float = 0.0) -> str:
        """Add a note; answers the process and how many notes it has of the session."""
        call = invocation()
        key = (call.user, call.session)
        assert call.session_is_new == (any(key) and key not in self._notes)
        self._notes[key] = self._notes.get(key, 0) + 1
        await asyncio.sleep(seconds)
        return f"{os.getpid()} {self._notes[key]}"

    async def cleanup(self, session: Session | None = None) -> None:
        """Forget a session, and write it down."""
        if session is not None:
            del self._notes[session]
            if self._ends is not None:
                with self._ends.open("a") as file:
                    file.write(f"{session.user}/{session.id}\n")


async def ask(settings: Settings, session: str) -> None:
    """Be an agent that never ends by itself."""
    async with ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("note", 20)
        result = await bus.call("note", user="ann", session=session)
        sys.stdout.write(f"{bus.agent} {result.output}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def beat_while_registering() -> None:
    """Let the registration of a service wait for a beat that does not name it."""
    beaten, follow, beat = Ownership.beaten, WakeChannel.follow, asyncio.Event()

    def heard(ownership: Ownership, *args: Any, **given: Any) -> None:
        beaten(ownership, *args, **given)
        beat.set()

    async def late(channel: WakeChannel, stream: RequestStream) -> None:
        beat.clear()
        await beat.wait()
        await follow(channel, stream)

    Ownership.beaten, WakeChannel.follow = heard, late  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    role, url, namespace, lease, last = sys.argv[1:6]
    chosen = Settings.load({}, url=url, namespace=namespace, lease=lease, grace=1.0)
    if role == "late":
        beat_while_registering()
    asyncio.run(ask(chosen, last) if role == "agent" else Worker(Notes(Path(last)), settings=chosen).run())
