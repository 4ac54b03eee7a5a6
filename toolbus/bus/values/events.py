"""The events of a call, which ``Call.events()`` yields."""

from __future__ import annotations

import msgspec

from toolbus.bus.values.results import Blob, Progress, ToolResult


class Started(msgspec.Struct, frozen=True):
    """A worker started the call; ``queued_ms`` is how long the request waited (milliseconds)."""

    worker: str
    attempt: int
    queued_ms: float


class Text(msgspec.Struct, frozen=True):
    """A piece of the tool's text, in order."""

    text: str


class Asked(msgspec.Struct, frozen=True):
    """The running handler waits for a confirmation, for ``timeout`` seconds at most; the call's deadline is paused.

    ``bus.confirmations`` answers by the ``id``, in any process.
    """

    id: str
    question: str
    timeout: float


class Answered(msgspec.Struct, frozen=True):
    """The handler waits no longer; ``allowed`` is None without an answer."""

    id: str
    allowed: bool | None = None


class Reset(msgspec.Struct, frozen=True):
    """A new attempt diverged: everything delivered so far is void, the new text follows."""

    attempt: int


class Finished(msgspec.Struct, frozen=True):
    """The one end of every call."""

    result: ToolResult


Event = Started | Text | Progress | Blob | Asked | Answered | Reset | Finished


def size_of(event: object) -> int:
    """Return about how many bytes an event has."""
    if isinstance(event, Text):
        return len(event.text)
    return len(event.data) if isinstance(event, Blob) else 64
