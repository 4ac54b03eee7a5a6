"""Read what an HTTP server answered: its media type, its text, and the reason of an error."""

from __future__ import annotations

import codecs
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from toolbus.display import harmless
from toolbus.results import ErrorInfo

_MOST_MESSAGE = 1_000
_PASSING = frozenset({429, 503})
_LONGEST_WAIT = 86_400.0


class Answer(msgspec.Struct, frozen=True):
    """A complete answer.

    Attributes:
        status: of HTTP.
        headers: by name in lower case.
        body: decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """Its media type in lower case, without parameters; empty when it has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()[:200]

    @property
    def charset(self) -> str:
        """Its character set; UTF-8 when it names none that is known."""
        named = self.headers.get("content-type", "").lower().partition("charset=")[2].strip(" \"'").partition(";")[0]
        try:
            return codecs.lookup(named).name if named else "utf-8"
        except (LookupError, ValueError):
            return "utf-8"

    @property
    def is_json(self) -> bool:
        """Tell whether it says that it is JSON."""
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    @property
    def is_text(self) -> bool:
        """Tell whether it is text for people."""
        kind = self.media_type
        return kind.startswith("text/") or kind.endswith(("xml", "yaml", "javascript", "ndjson", "jsonl"))

    @property
    def text(self) -> str:
        """Its body as text."""
        try:
            return self.body.decode(self.charset, "replace")
        except (LookupError, ValueError):
            return self.body.decode("utf-8", "replace")


def failure(request: str, answer: Answer) -> ErrorInfo:
    """Return the error of an answer with an error status.

    Args:
        request: the request in words.
        answer: to it.
    """
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    text = harmless(answer.text).strip() if answer.is_json or answer.media_type.startswith("text/") else ""
    message = f"{request} answered {answer.status}{phrase}{': ' if text else ''}{text}"
    passing = answer.status in _PASSING
    return ErrorInfo(
        "tool_error",
        code=f"http_{answer.status}",
        message=message if len(message) <= _MOST_MESSAGE else f"{message[: _MOST_MESSAGE - 1]}…",
        retryable=passing,
        retry_after=_wait(answer.headers.get("retry-after", "")) if passing else None,
    )


def decoded(body: bytes) -> Any:
    """Return the value that JSON text stands for; None when it can't be read."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _wait(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, or None."""
    try:
        seconds = float(text) if text.strip().replace(".", "", 1).isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None
