"""Problem details (RFC 9457): the errors of the gateway as JSON with a status code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from toolbus.envelope import REQUEST_TOO_LARGE
from toolbus.results import ErrorInfo, ErrorType

MEDIA_TYPE = "application/problem+json"

STATUS: dict[ErrorType, int] = {
    "not_found": 404,
    "invalid_arguments": 422,
    "unavailable": 503,
    "overloaded": 429,
    "deadline_exceeded": 504,
    "cancelled": 409,
    "rate_limited": 429,
    "forbidden": 403,
    "outcome_unknown": 409,
    "slow_consumer": 503,
    "tool_error": 502,
}
"""The status code of each type of error."""


# Codes that say more than the type.
_OF_CODES = {"idempotency_conflict": 409, REQUEST_TOO_LARGE: 413}
# Of a tool they are about what it was asked for, and no answer of the gateway's to the request.
_OF_TOOLS = frozenset({"not_found", "forbidden"})


def is_answer(error: ErrorInfo | None) -> bool:
    """Return whether a result with this error is a tool's answer, and no failure of the request."""
    return error is None or error.type == "tool_error" or (error.origin == "tool" and error.type in _OF_TOOLS)


class Problem(Exception):
    """A request that can't be answered as asked.

    Args:
        status: the HTTP status code.
        type: an error type of toolbus, or a word of the gateway's own.
        detail: what is wrong and what to do, for people.
        headers: further headers of the answer.
        **members: further members of the document.
    """

    def __init__(self, status: int, type: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.type = type
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    @classmethod
    def of(cls, error: ErrorInfo) -> Problem:
        """Return the problem that a call's error is."""
        headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
        found = {name: value for name, value in (("code", error.code), ("details", error.details)) if value}
        status = _OF_CODES.get(error.code, STATUS[error.type])
        return cls(status, error.type, error.message or str(error), headers, retryable=error.retryable, **found)

    def document(self) -> dict[str, Any]:
        """Return the problem details."""
        kind = f"urn:toolbus:error:{self.type}"
        return {"type": kind, "title": self.type, "status": self.status, "detail": self.detail, **self.members}

    def response(self) -> Response:
        """Return the answer."""
        return Response(msgspec.json.encode(self.document()), self.status, self.headers, MEDIA_TYPE)


async def on_problem(request: Request, error: Exception) -> Response:
    """Answer a ``Problem``."""
    return cast("Problem", error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer an error of Starlette's own (no such path, wrong method)."""
    refused = cast("HTTPException", error)
    kind = {404: "no_such_path", 405: "wrong_method"}.get(refused.status_code, "bad_request")
    return Problem(refused.status_code, kind, f"{request.method} {request.url.path}: {refused.detail}", refused.headers).response()


async def on_broker_error(request: Request, error: Exception) -> Response:
    """Answer that the server could not be asked."""
    return Problem(503, "unavailable", str(error), {"Retry-After": "1"}, code="no_server", retryable=True).response()


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer an exception that nothing expected; the server logs its traceback."""
    return Problem(500, "internal_error", "the gateway has failed to answer; its log says why").response()
