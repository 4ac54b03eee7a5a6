"""Make lines of events: text for people, or JSON for programs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import msgspec

from toolbus import safe_text
from toolbus.display import visible

MAX_VALUE = 8_000
"""Most characters of one field's value in a line."""

Render = Callable[[float, str, str, Mapping[str, Any], str, str], str]
"""Make a line from the time, the level's name, the event, its fields, a traceback and a stack."""


def text_of(value: object) -> str:
    """Return ``str(value)`` at a bounded length; a value whose ``str()`` raises is named by its type."""
    return shortened(value if type(value) is str else safe_text.text_of(value))


def shortened(text: str, most: int = MAX_VALUE) -> str:
    """Return the text, with its middle left out when it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… {len(text) - 2 * half:,} characters left out …{text[-half:]}"


def word(value: object) -> str:
    """Return a value as one word of a log line, quoted where necessary, so that it can't forge fields or lines."""
    text = text_of(value)
    if not text.isprintable() or not text or " " in text or '"' in text or "=" in text:
        return quoted(text)
    # Some printable characters are invisible all the same.
    return text if text.isascii() or visible(text) == text else quoted(text)


class _Times:
    """Formats times as text up to the millisecond, which several events share."""

    __slots__ = ("_last", "_text")

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._last = (-1, "")

    def __call__(self, when: float) -> str:
        milliseconds = int(when * 1000)
        last = self._last
        if last[0] != milliseconds:
            # One assignment, so that other threads see either the old pair or the new one.
            last = self._last = (milliseconds, f"{self._text(milliseconds // 1000)}.{milliseconds % 1000:03}")
        return last[1]


class JsonLine:
    """Makes a line that is one JSON object.

    Args:
        process: the id of this process, where several write to one place; 0 leaves it out.
    """

    def __init__(self, process: int = 0) -> None:
        self._process = f',"process":{process}' if process else ""
        self._time = _Times(lambda second: time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))

    def __call__(self, when: float, level: str, event: str, fields: Mapping[str, Any], raised: str, stack: str) -> str:
        """Return the line."""
        begin = f'{{"time":"{self._time(when)}Z","level":"{level}","event":{quoted(event)}{self._process}'
        if fields and not raised and not stack and fields.keys().isdisjoint(_RESERVED):
            try:
                rest = _encode(fields)
            except Exception:  # noqa: BLE001 - as in text_of
                rest = b""
            # The encoder writes null for NaN and infinity, too, and leaves a DEL as it is.
            if 0 < len(rest) <= MAX_VALUE and rest.isascii() and b"null" not in rest and b"\x7f" not in rest:
                return f"{begin},{rest[1:].decode()}"
        parts = [begin]
        parts += [f"{quoted(name)}:{_json(value)}" for name, value in fields.items() if name not in _RESERVED]
        if raised:
            parts.append(f'"exception":{quoted(raised)}')
        if stack:
            parts.append(f'"stack":{quoted(stack)}')
        return ",".join(parts) + "}"


_RESERVED = frozenset({"time", "level", "event", "process"})
_encode = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    kind = type(value)
    if kind is str:
        return quoted(value if len(value) <= MAX_VALUE else shortened(value))  # type: ignore[arg-type]
    if kind is int:
        # str() refuses integers with thousands of digits.
        return str(value) if -_WIDE < value < _WIDE else quoted(text_of(value))  # type: ignore[operator]
    if kind is float:
        return repr(value) if math.isfinite(value) else quoted(str(value))  # type: ignore[arg-type]
    try:
        text = json.dumps(value, default=text_of, allow_nan=False)
    except Exception:  # noqa: BLE001 - as in text_of
        text = ""
    return text if 0 < len(text) <= MAX_VALUE else quoted(text_of(value))


_WIDE = 1 << 1_000
_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


class TextLine:
    """Makes a line with time, level, event and fields; traceback lines are indented, so that none can pass for an event.

    Args:
        colours: whether the terminal shows them.
        process: as in ``JsonLine``.
    """

    def __init__(self, *, colours: bool, process: int = 0) -> None:
        self._process = {"process": process} if process else {}
        self._time = _Times(lambda second: time.strftime("%H:%M:%S", time.localtime(second)))
        self._colours_on = colours

    def __call__(self, when: float, level: str, event: str, fields: Mapping[str, Any], raised: str, stack: str) -> str:
        """Return the line."""
        parts = [self._time(when), self._painted(f"{level:<8}", _COLOURS.get(level, "")), self._painted(visible(event), _BOLD)]
        parts += [f"{self._painted(name, _CYAN)}={word(value)}" for name, value in {**fields, **self._process}.items()]
        line = " ".join(parts)
        for block in filter(None, (raised, stack)):
            line += "".join(f"\n    {visible(each)}" for each in block.split("\n"))
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours_on and colour else text
