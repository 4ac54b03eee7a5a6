"""``Position``: how much of a call's events a client has, as the id of an event."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.bus.values.results import Blob, Progress
from toolbus.edges.gateway.bodies import Problem

_ID = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})\.([0-9]{1,9})\.([\x20-\x7e]{1,255})").fullmatch


class Position(msgspec.Struct):
    """The part of a call's events that a client has. The same call yields the same events to everybody who reads it from its start.

    Attributes:
        resets: resets so far.
        characters: characters of text since the last reset.
        others: other events since the last reset.
    """

    resets: int = 0
    characters: int = 0
    others: int = 0

    def pass_(self, event: Event) -> None:
        """Move on by one event."""
        if type(event) is Text:
            self.characters += len(event.text)
        elif type(event) is Reset:
            self.resets += 1
            self.characters = self.others = 0
        elif isinstance(event, (Progress, Blob, Asked, Answered)):
            self.others += 1

    def id(self, key: str) -> str:
        """Return the id of the event that led here, in a call with an idempotency key. Any replica can go on from it."""
        return f"{self.resets}.{self.characters}.{self.others}.{key}"


def read_id(id: str) -> tuple[Position, str]:
    """Return the position and the idempotency key that an event's id stands for.

    Raises:
        Problem: 422, it is no id of such an event.
    """
    found = _ID(id)
    if found is None:
        raise Problem(422, "invalid_header", "Last-Event-ID is not the id of an event of a call with an Idempotency-Key")
    return Position(int(found[1]), int(found[2]), int(found[3])), found[4]


class Replay:
    """Leaves out the events that a client has.

    Args:
        had: its position.
    """

    def __init__(self, had: Position) -> None:
        self._had = had
        self._now = Position()

    def unseen(self, event: Event) -> Iterator[Event]:
        """Yield what the client does not have of an event."""
        had, before = self._had, msgspec.structs.replace(self._now)
        self._now.pass_(event)
        now = self._now
        if type(event) is Finished:
            if (now.resets, now.characters) < (had.resets, had.characters):
                # What the client has is of an execution that is not kept any more, so that nothing of it counts.
                yield Reset(event.result.meta.attempts)
                if event.result.output:
                    yield Text(event.result.output)
            yield event
        elif type(event) is Started or before.resets > had.resets:
            yield event
        elif type(event) is Reset:
            if now.resets > had.resets:
                yield event
        elif before.resets == had.resets:
            yield from _rest(event, before, had)


def _rest(event: Event, before: Position, had: Position) -> Iterator[Event]:
    if type(event) is Text:
        left = event.text[max(0, had.characters - before.characters) :]
        if left:
            yield Text(left)
    elif before.others >= had.others:
        yield event
