"""``TaskState``: what is known of a task, from the frames of its call."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolbus.client.calls.assembly import Assembly
from toolbus.envelope import Frame
from toolbus.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.results import Progress, ToolResult


class TaskState(msgspec.Struct):
    """The state of a task, as far as it is known.

    Attributes:
        started: whether a worker has begun it.
        attempt: the attempt that runs.
        progress: the latest progress.
        question: what the handler waits for a person to answer, or None.
        result: the end, or None while it runs.
        updated: when something was last heard of it, in seconds since 1970.
    """

    started: bool = False
    attempt: int = 0
    progress: Progress | None = None
    question: Asked | None = None
    result: ToolResult | None = None
    updated: float = 0.0
    _text: list[str] = []

    @property
    def text(self) -> str:
        """The text of the call so far."""
        if len(self._text) > 1:
            # Joined when it is asked for: pieces come one by one, and a text may have millions of them.
            self._text = ["".join(self._text)]
        return self._text[0] if self._text else ""

    def hear(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case Text():
                self._text.append(event.text)
            case Started():
                self.started, self.attempt = True, event.attempt
            case Progress():
                self.progress = event
            case Asked():
                self.question = event
            case Answered():
                self.question = None
            case Reset():
                self._text, self.progress, self.attempt = [], None, event.attempt
            case Finished():
                self.question, self.result = None, event.result


def state_of(frames: Iterable[Frame], updated: float) -> TaskState:
    """Return the state that the frames of a call tell of."""
    assembly, state = Assembly(), TaskState(updated=updated)
    run = ""
    for frame in frames:
        events = assembly.feed(frame)
        if assembly.run != run:
            # What an earlier run asked is withdrawn.
            run, state.question = assembly.run, None
        for event in events:
            state.hear(event)
    state.attempt = assembly.attempt
    return state
