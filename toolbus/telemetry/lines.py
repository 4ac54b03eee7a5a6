"""Where our own programs write events: text for people, JSON lines for programs."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from toolbus.telemetry.events import FIELDS, logger, word

LogFormat = Literal["auto", "text", "json"]


def configure_logging(level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Write toolbus's events to ``stream`` (standard error); for our own programs, not for libraries.

    ``auto`` is text on a terminal and JSON lines elsewhere. Text has colours on a terminal unless NO_COLOR is set.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if format == "json" or (format == "auto" and not terminal):
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(_TextLines(colours=terminal and not os.environ.get("NO_COLOR")))
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """An event's name and fields, or the message of a record that is not ours."""
    return dict(getattr(record, FIELDS, None) or {"event": record.getMessage(), "logger": record.name})


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ours = {"time": when, "level": record.levelname.lower()}
        fields = {**ours, **_fields(record), **ours}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields, default=str)


_BOLD, _CYAN = "\x1b[1m", "\x1b[36m"
_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}


class _TextLines(logging.Formatter):
    """Time, level, event and fields for people."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours_on = colours

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        event = str(fields.pop("event"))
        level = f"{record.levelname.lower():<8}"
        pairs = (f"{self._painted(key, _CYAN)}={word(value)}" for key, value in fields.items())
        line = " ".join([when, self._painted(level, _COLOURS.get(record.levelname, "")), self._painted(event, _BOLD), *pairs])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            line += "\n" + self.formatStack(record.stack_info)
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}\x1b[0m" if self._colours_on and colour else text
