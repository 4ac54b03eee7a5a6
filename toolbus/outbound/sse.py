"""Read server-sent events: the name and the data of each."""

from __future__ import annotations

import re

import msgspec

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MOST = 4_194_304


class SentEvent(msgspec.Struct, frozen=True):
    """One event; its name is empty when it has none."""

    name: str
    data: str


class EventReader:
    """Takes the bytes of a stream in chunks of any size and returns complete events.

    Args:
        limit: most bytes of one event.
    """

    def __init__(self, limit: int = _MOST) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._data: list[str] = []
        self._size = 0
        self._first = True
        self._name = ""

    def feed(self, chunk: bytes) -> list[SentEvent]:
        """Return the events that end in this chunk.

        Raises:
            ValueError: an event is too long.
        """
        self._size += len(chunk)
        self._pieces.append(chunk)
        found: list[SentEvent] = []
        if b"\n" in chunk or b"\r" in chunk:
            found = self._split(b"".join(self._pieces))
        if self._size > self._limit:
            raise ValueError(f"an event of more than {self._limit} bytes")
        return found

    def end(self) -> list[SentEvent]:
        """Return an event that ends with the stream, since some endpoints leave out the last empty line."""
        return self.feed(b"\n\n")

    def _split(self, text: bytes) -> list[SentEvent]:
        # A CR at the very end may be half of a CRLF, so it is kept for the next chunk.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(held)])
        self._pieces = [rest + held]
        found: list[SentEvent] = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                found.append(event)
        self._size = len(rest) + sum(map(len, self._data))
        return found

    def _line(self, line: bytes) -> SentEvent | None:
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            name, data, self._name, self._data = self._name, self._data, "", []
            return SentEvent(name, "\n".join(data)) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        return None
