"""What a handler did in a test: its result, and everything that a caller would have seen on the way there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.events import Event, Text
from toolbus.results import Blob, Progress, ToolResult


class NestedCall(msgspec.Struct, frozen=True):
    """A call that the handler made; ``options`` are those that would have gone to the bus."""

    tool: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """What a run of a handler came to.

    Attributes:
        result: what ``bus.call`` would have returned.
        events: what ``call.events()`` would have yielded, the last of them ``Finished``.
        calls: the nested calls, in the order in which they were made.
    """

    result: ToolResult
    events: tuple[Event, ...]
    calls: tuple[NestedCall, ...]

    @property
    def texts(self) -> list[str]:
        """The pieces of text, as they were yielded."""
        return [event.text for event in self.events if isinstance(event, Text)]

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(self.texts)

    @property
    def progress(self) -> list[Progress]:
        """The progress that was reported."""
        return [event for event in self.events if isinstance(event, Progress)]

    @property
    def blobs(self) -> list[Blob]:
        """The blobs, whole."""
        return [event for event in self.events if isinstance(event, Blob)]
