"""Report what a running call says as progress, which only ever grows."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import msgspec

from toolbus.events import Asked, Event, Reset, Text
from toolbus.mcp.caller import Context
from toolbus.results import Progress

# Characters of a message, and messages that wait; a client that reads slowly gets the latest.
_MOST_MESSAGE = 8_000
_MOST_WAITING = 64
# What a piece of text adds to the progress: it has no measure of its own, and progress must grow.
_STEP = 0.001


class _Note(msgspec.Struct):
    """One notification to be sent."""

    is_text: bool
    done: float
    total: float | None
    message: str


class ProgressReport:
    """Sends the progress of one request; a task runs ``send`` while another one calls ``hear``.

    What comes while a notification is on its way is put together, so that a slow client slows no call down.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = 0.0
        self._waiting: deque[_Note] = deque(maxlen=_MOST_WAITING)
        self._ready = asyncio.Event()
        self._over = False

    def hear(self, event: Event) -> None:
        """Take in an event of the call."""
        if isinstance(event, Text):
            self._text(event.text)
        elif isinstance(event, Progress):
            self._add(_Note(False, self._grown(event.done), event.total, event.message))
        elif isinstance(event, Reset):
            self._text(f"\n[attempt {event.attempt} starts from the beginning]\n")
        elif isinstance(event, Asked):
            self._add(_Note(False, self._grown(0), None, f"waits for a person: {event.question} (toolbus confirm allow {event.id})"))

    def end(self) -> None:
        """Let ``send`` return when it has sent what there is."""
        self._over = True
        self._ready.set()

    async def send(self) -> None:
        """Send until the end."""
        while not self._over or self._waiting:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                note = self._waiting.popleft()
                total = note.total if note.total is not None and note.total >= note.done else None
                await self._context.session.report_progress(note.done, total, note.message or None)

    def _text(self, text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.is_text and len(last.message) < _MOST_MESSAGE:
            last.message += text
        else:
            self._add(_Note(True, self._grown(0), None, text))

    def _add(self, note: _Note) -> None:
        self._waiting.append(note)
        self._ready.set()

    def _grown(self, done: float) -> float:
        """Return a value above the last one: ``done``, if it is."""
        if done <= self._last:
            done = max(round(self._last + _STEP, 3), math.nextafter(self._last, math.inf))
        self._last = done
        return done
