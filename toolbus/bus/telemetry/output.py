"""Write events to a stream from one thread, so that a reader who stops to read never holds up who logs."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from types import TracebackType
from typing import Any, Literal, TextIO

import msgspec

from toolbus.bus.support import safe_text
from toolbus.bus.support.display import visible
from toolbus.bus.support.safe_text import traceback_of
from toolbus.bus.telemetry.providers import logger

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


LogFormat = Literal["auto", "text", "json"]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

FIELDS = "toolbus"
"""The attribute of a LogRecord that carries an event's fields."""

MAX_TRACEBACK = 64_000
MAX_WAITING = 1 << 22
"""Most characters that wait for a stream which takes none; lines beyond them are counted and dropped."""

# Seconds within which lines are written. Each write wakes the reader of a pipe, which costs more than making a dozen lines.
_PERIOD = 0.02
# Seconds for which the end of the program, or a fork, waits for a stream that takes nothing.
_PATIENCE = 2.0


class LineHandler(logging.Handler):
    """Writes events, and the records of other loggers, as lines.

    What is logged within an event loop is written by a thread: a warning at once, other lines together after 20 ms. Everything else is
    written before the call returns.
    """

    def __init__(self, stream: TextIO, render: Render) -> None:
        super().__init__()
        self._render = render
        self.writer = LineWriter(stream, self._dropped)

    def line(self, level: str, event: str, fields: Mapping[str, Any], raised: ExcInfo | None) -> str:
        """Return the line of an event."""
        return self._render(time.time(), level, event, fields, _traceback(raised) if raised else "", "") + "\n"

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001 - a message and arguments that do not fit are reported as the logging module does
            self.handleError(record)
            return
        self.writer.add(line, urgent=record.levelno >= logging.WARNING)

    def flush(self) -> None:
        """Write what waits; the logging module calls this when the program ends."""
        self.writer.flush(_PATIENCE)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self.writer.close()
        super().close()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        fields = dict(getattr(record, FIELDS, None) or {"event": record.getMessage(), "logger": record.name})
        event = shortened(str(fields.pop("event", "")))
        raised = _traceback(record.exc_info) if record.exc_info and record.exc_info[0] is not None else ""
        return self._render(record.created, record.levelname.lower(), event, fields, raised, shortened(record.stack_info or ""))

    def _dropped(self, lines: int) -> str:
        return self._render(time.time(), "warning", "log.dropped", {"lines": lines}, "", "") + "\n"


class LineWriter:
    """Collects lines in order and writes them in batches.

    Args:
        stream: takes the lines.
        dropped: makes the line that says how many were dropped.

    Attributes:
        lost: how many lines were dropped, or could not be written.
    """

    def __init__(self, stream: TextIO, dropped: Callable[[int], str]) -> None:
        self._stream = stream
        self._dropped_line = dropped
        self._waiting: deque[str] = deque()
        # Characters that wait; threads may lose an addition to each other's, and an empty queue sets it right.
        self._size = 0
        self._dropped = 0
        self.lost = 0
        self._writing = threading.Lock()
        self._held = False
        self._begin_thread()

    def _begin_thread(self) -> None:
        self._thread: threading.Thread | None = None
        self._wake, self._urgent = threading.Event(), threading.Event()
        self._asleep = True
        self._closed = False

    def add(self, line: str, *, urgent: bool) -> None:
        """Write a line after those that wait: now, or soon by the thread when an event loop runs in this one."""
        if self._size > MAX_WAITING:
            self._dropped += 1
            self.lost += 1
            return
        self._size += len(line)
        self._waiting.append(line)
        if self._closed or asyncio._get_running_loop() is None or (self._thread is None and not self._start()):
            self._write_here(_PATIENCE)
            return
        if urgent:
            self._hurry()
        elif self._asleep:
            self._asleep = False
            self._wake.set()

    def flush(self, patience: float) -> None:
        """Write what waits; a stream that takes nothing is given up after ``patience`` seconds."""
        if self._thread is None or not self._thread.is_alive():
            self._write_here(patience)
            return
        self._hurry()
        over = time.monotonic() + patience
        while (self._waiting or self._writing.locked()) and time.monotonic() < over:
            time.sleep(0.001)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self.flush(_PATIENCE)
        self._closed = True
        self._hurry()

    def _hurry(self) -> None:
        self._urgent.set()
        self._wake.set()

    def _write_here(self, patience: float) -> None:
        if self._writing.acquire(timeout=patience):
            try:
                self._write_waiting()
            finally:
                self._writing.release()

    def before_fork(self) -> None:
        """Let a write end."""
        self._held = self._writing.acquire(timeout=_PATIENCE)

    def after_fork(self, *, child: bool) -> None:
        """Go on; in a child without the collected lines and the thread."""
        if child:
            self._waiting.clear()
            self._size = self._dropped = self.lost = 0
            self._writing = threading.Lock()
            self._begin_thread()
        elif self._held:
            self._writing.release()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="toolbus-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter ends, or the system gives no more threads.
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._urgent.wait(_PERIOD)
            # In this order: a line that comes from here on either is written now, or wakes the thread.
            self._urgent.clear()
            self._wake.clear()
            self._asleep = True
            with self._writing:
                self._write_waiting()

    def _write_waiting(self) -> None:
        waiting = self._waiting
        while waiting or self._dropped:
            lines = "".join([waiting.popleft() for _ in range(len(waiting))])
            self._size = max(0, self._size - len(lines)) if waiting else 0
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                lines += self._dropped_line(dropped)
            # When the reader is gone or the stream is closed, the lines have no destination left. An application's own stream may raise
            # anything else, which must not end the thread: all later lines would wait for ever.
            try:
                try:
                    self._stream.write(lines)
                except UnicodeEncodeError:
                    self._stream.write(lines.encode("ascii", "backslashreplace").decode("ascii"))
                self._stream.flush()
            except Exception:  # noqa: BLE001 - see above
                self.lost += lines.count("\n")


def lines_lost() -> int:
    """Return how many log lines of this process were dropped, or could not be written."""
    return sum(writer.lost for writer in _writers())


def flush_logging() -> None:
    """Write the collected lines; for programs that exit without Python's clean-up."""
    for writer in _writers():
        writer.flush(_PATIENCE)


def _writers() -> list[LineWriter]:
    return [handler.writer for handler in logger.handlers if isinstance(handler, LineHandler)]


def _each(step: Callable[[LineWriter], None]) -> Callable[[], None]:
    def run() -> None:
        for writer in _writers():
            step(writer)

    return run


# A write ends first, so that no child has half of it; a child drops the collected lines, which the parent writes.
os.register_at_fork(
    before=_each(LineWriter.before_fork),
    after_in_parent=_each(lambda writer: writer.after_fork(child=False)),
    after_in_child=_each(lambda writer: writer.after_fork(child=True)),
)


def _traceback(raised: ExcInfo) -> str:
    return shortened(traceback_of(raised[1]), MAX_TRACEBACK)
