"""Write the events of a call as server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

from toolbus.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.results import Blob, Progress

COMMENT = b":\n\n"
"""A line that clients leave out: it shows that the connection lives."""

_RETRY = 1000
_NAMES: dict[type[Any], bytes] = {
    Started: b"started",
    Text: b"text",
    Progress: b"progress",
    Blob: b"blob",
    Asked: b"confirm",
    Answered: b"answered",
    Reset: b"reset",
    Finished: b"end",
}
_SEPARATORS = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\x85\u2028\u2029")
_encode = msgspec.json.Encoder().encode


def opening() -> bytes:
    """Return the line that says when to come back after a lost connection (milliseconds)."""
    return b"retry: %d\n\n" % _RETRY


def event_bytes(event: Event, id: str = "") -> bytes:
    """Return an event of a call, with its id if it has one."""
    return named_event(_NAMES[type(event)], _encode(event.result if type(event) is Finished else event), id)


def named_event(name: bytes, data: bytes, id: str = "") -> bytes:
    """Return an event with JSON data, in one line: an encoder of JSON escapes line ends, so that no text can begin a line of its own."""
    if not data.isascii():
        # Some clients take these for line ends, too.
        for character, escaped in _SEPARATORS:
            data = data.replace(character, escaped)
    if id:
        return b"event: %b\nid: %b\ndata: %b\n\n" % (name, id.encode("ascii"), data)
    return b"event: %b\ndata: %b\n\n" % (name, data)
