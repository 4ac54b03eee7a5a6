"""Write events to a stream: as text for people or as JSON lines for programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from types import TracebackType
from typing import Any, Literal, TextIO

from toolbus.display import visible
from toolbus.telemetry.events import NAME

LogFormat = Literal["auto", "text", "json"]
FIELDS = "toolbus"
"""The attribute of a LogRecord that carries an event's fields."""

MAX_VALUE = 8_000
"""Most characters of one field's value in a line."""
MAX_TRACEBACK = 64_000
MAX_WAITING = 64

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
_Render = Callable[[float, str, Mapping[str, Any], str, str], str]


def configure_logging(level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Write toolbus's events to ``stream`` (standard error by default); for programs, not for libraries.

    ``auto`` means text on a terminal and JSON lines elsewhere. Text has colours on a terminal unless NO_COLOR is set.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    json_lines = format == "json" or (format == "auto" and not terminal)
    handler = LineHandler(stream, _JsonLine() if json_lines else _TextLine(colours=terminal and not os.environ.get("NO_COLOR")))
    logger = logging.getLogger(NAME)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes events, and the records of other loggers, as lines.

    Lines below a warning are collected and written together at the end of one turn of the event loop: a write for each would wake
    the reader of a pipe each time, which costs twice as much as the rest. All other lines are written at once, after the collected ones.

    Args:
        render: make a line from the time, the level's name, the fields, a traceback and a stack.
    """

    def __init__(self, stream: TextIO, render: _Render) -> None:
        super().__init__(stream)
        self._render = render
        self._waiting: list[str] = []
        self._turn: asyncio.AbstractEventLoop | None = None

    def write_event(self, level: int, fields: Mapping[str, Any], raised: ExcInfo | None) -> None:
        """Write an event without a LogRecord, which would take three times as long to create as the line.

        Never raises, because a broken stream must not end a call.
        """
        line = self._render(time.time(), _LEVELS[level], fields, _traceback(raised) if raised else "", "") + "\n"
        loop = asyncio._get_running_loop() if level < logging.WARNING else None
        self.acquire()
        try:
            self._waiting.append(line)
            if loop is None or len(self._waiting) >= MAX_WAITING:
                self._write_waiting()
            elif loop is not self._turn:
                self._turn = loop
                loop.call_soon(self._end_turn)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record after all collected lines."""
        self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        """Write the collected lines; the logging module calls this when the program ends."""
        self.acquire()
        try:
            self._write_waiting()
        finally:
            self.release()
        super().flush()

    def forget_waiting(self) -> None:
        """Drop the collected lines in a child that was forked within a turn: the parent writes them."""
        self._waiting.clear()
        self._turn = None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        fields = getattr(record, FIELDS, None) or {"event": record.getMessage(), "logger": record.name}
        raised = record.exc_info if record.exc_info and record.exc_info[0] is not None else None
        return self._render(
            record.created, record.levelname.lower(), fields, _traceback(raised) if raised else "", shortened(record.stack_info or "")
        )

    def _end_turn(self) -> None:
        self.acquire()
        try:
            self._turn = None
            self._write_waiting()
        finally:
            self.release()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        lines = "".join(self._waiting)
        self._waiting.clear()
        # When the reader is gone or the stream is closed, the lines have no destination left.
        with contextlib.suppress(OSError, ValueError):
            try:
                self.stream.write(lines)
            except UnicodeEncodeError:
                self.stream.write(lines.encode("ascii", "backslashreplace").decode("ascii"))
            self.stream.flush()


def flush_logging() -> None:
    """Write lines collected in the current turn of the event loop; for programs that exit without Python's clean-up."""
    for handler in _handlers():
        handler.flush()


def _handlers() -> list[LineHandler]:
    return [handler for handler in logging.getLogger(NAME).handlers if isinstance(handler, LineHandler)]


def _forked() -> None:
    for handler in _handlers():
        handler.forget_waiting()


os.register_at_fork(after_in_child=_forked)

_LEVELS = {level: logging.getLevelName(level).lower() for level in (10, 20, 30, 40, 50)}


def _traceback(raised: ExcInfo) -> str:
    return shortened(_FORMATTER.formatException(raised), MAX_TRACEBACK)


_FORMATTER = logging.Formatter()


def text_of(value: object) -> str:
    """Return ``str(value)`` at a bounded length; a value whose ``str()`` raises is named by its type."""
    try:
        text = value if type(value) is str else str(value)
    except Exception:  # noqa: BLE001 - a value without a text must not end the call that is logged
        text = f"<{type(value).__name__} that can't be shown>"
    return shortened(text)


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


class _Seconds:
    """Formats times as text and reuses the part up to the second."""

    __slots__ = ("_last", "_text")

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._last = (-1, "")

    def __call__(self, when: float) -> str:
        second, milliseconds = divmod(int(when * 1000), 1000)
        last = self._last
        if last[0] != second:
            # One assignment, so that other threads see either the old pair or the new one.
            last = self._last = (second, self._text(second))
        return f"{last[1]}.{milliseconds:03}"


class _JsonLine:
    """Makes a line that is one JSON object."""

    def __init__(self) -> None:
        self._time = _Seconds(lambda second: time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))

    def __call__(self, when: float, level: str, fields: Mapping[str, Any], raised: str, stack: str) -> str:
        """Return the line."""
        parts = [f'{{"time": "{self._time(when)}Z", "level": "{level}"']
        parts += [f"{quoted(name)}: {_json(value)}" for name, value in fields.items() if name not in _RESERVED]
        if raised:
            parts.append(f'"exception": {quoted(raised)}')
        if stack:
            parts.append(f'"stack": {quoted(stack)}')
        return ", ".join(parts) + "}"


_RESERVED = frozenset({"time", "level"})


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


class _TextLine:
    """Makes a line with time, level, event and fields; traceback lines are indented, so that none can pass for an event."""

    def __init__(self, *, colours: bool) -> None:
        self._time = _Seconds(lambda second: time.strftime("%H:%M:%S", time.localtime(second)))
        self._colours_on = colours

    def __call__(self, when: float, level: str, fields: Mapping[str, Any], raised: str, stack: str) -> str:
        """Return the line."""
        parts = [self._time(when), self._painted(f"{level:<8}", _COLOURS.get(level, ""))]
        for name, value in fields.items():
            if name == "event":
                parts.append(self._painted(visible(text_of(value)), _BOLD))
            else:
                parts.append(f"{self._painted(name, _CYAN)}={word(value)}")
        line = " ".join(parts)
        for block in filter(None, (raised, stack)):
            line += "".join(f"\n    {visible(each)}" for each in block.split("\n"))
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours_on and colour else text
