"""``Outcome``: the result of a handler in a test, and everything that a caller would have seen."""

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
    """The outcome of one run of a handler.

    Attributes:
        result: the result that ``bus.call`` would have returned.
        events: the events that ``call.events()`` would have yielded, ending with ``Finished``.
        calls: the nested calls, in order.
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
        """All text in one string."""
        return "".join(self.texts)

    @property
    def progress(self) -> list[Progress]:
        """The reported progress."""
        return [event for event in self.events if isinstance(event, Progress)]

    @property
    def blobs(self) -> list[Blob]:
        """The complete blobs."""
        return [event for event in self.events if isinstance(event, Blob)]
