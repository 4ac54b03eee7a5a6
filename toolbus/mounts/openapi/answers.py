"""Turn what an API answers into results."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from toolbus.display import harmless
from toolbus.mounts.openapi.operations import Operation
from toolbus.mounts.openapi.web import Answer
from toolbus.results import Blob, ErrorInfo, ToolResult

_MOST_MESSAGE = 1_000
_PASSING = frozenset({429, 503})
_LONGEST_WAIT = 86_400.0


def result_of(operation: Operation, answer: Answer) -> ToolResult:
    """Return the answer of an operation: JSON as data, texts as output, anything else as a blob; an error status as a tool_error."""
    if not 200 <= answer.status < 300:
        return _failure(operation, answer)
    media_type = _media_type(answer)
    if not answer.body:
        return ToolResult(output="")
    if _is_json(media_type):
        try:
            return ToolResult(data=msgspec.json.decode(answer.body))
        except (msgspec.DecodeError, RecursionError):
            return ToolResult(output=_text(answer))
    if media_type.startswith("text/") or media_type.endswith(("xml", "yaml", "javascript")) or not media_type:
        return ToolResult(output=_text(answer))
    return ToolResult(output="", content=(Blob(media_type, answer.body),))


def _failure(operation: Operation, answer: Answer) -> ToolResult:
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    media_type, data = _media_type(answer), None
    text = harmless(_text(answer)).strip() if _is_json(media_type) or media_type.startswith("text/") else ""
    if _is_json(media_type):
        data = _decoded(answer.body)
    message = f"{operation.method.upper()} {operation.path} answered {answer.status}{phrase}{': ' if text else ''}{text}"
    passing = answer.status in _PASSING
    error = ErrorInfo(
        "tool_error",
        code=f"http_{answer.status}",
        message=message if len(message) <= _MOST_MESSAGE else f"{message[: _MOST_MESSAGE - 1]}…",
        retryable=passing,
        retry_after=_wait(answer.headers.get("retry-after", "")) if passing else None,
    )
    return ToolResult(success=False, data=data, error=error)


def _wait(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, or None."""
    try:
        seconds = float(text) if text.strip().replace(".", "", 1).isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _media_type(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()[:200]


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or media_type.endswith("+json")


def _text(answer: Answer) -> str:
    charset = answer.headers.get("content-type", "").lower().partition("charset=")[2].strip(" \"'").partition(";")[0]
    try:
        return answer.body.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):
        return answer.body.decode("utf-8", "replace")
