"""Read and write the gateway's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from toolbus.bus.values.encoding import DECODE_ERRORS, encode_data
from toolbus.bus.values.envelope import REQUEST_TOO_LARGE
from toolbus.bus.values.options import ServiceCallOptions
from toolbus.bus.values.results import ANSWERS, ERROR_KINDS, ErrorInfo

MEDIA_TYPE = "application/problem+json"

# Codes that say more than the type.
_OF_CODES = {"idempotency_conflict": 409, REQUEST_TOO_LARGE: 413}


def is_answer(error: ErrorInfo | None) -> bool:
    """Return whether a result with this error is a tool's answer, and no failure of the request."""
    return error is None or error.type == "tool_error" or (error.origin == "tool" and error.type in ANSWERS)


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
        status = _OF_CODES.get(error.code, ERROR_KINDS[error.type].status)
        return cls(status, error.type, error.message or str(error), headers, retryable=error.retryable, **found)

    def document(self) -> dict[str, Any]:
        """Return the problem details."""
        kind = f"urn:toolbus:error:{self.type}"
        return {"type": kind, "title": self.type, "status": self.status, "detail": self.detail, **self.members}

    def response(self) -> Response:
        """Return the answer."""
        return Response(msgspec.json.encode(self.document()), self.status, self.headers, MEDIA_TYPE)


async def on_problem(_: Request, error: Exception) -> Response:
    """Answer a ``Problem``."""
    return cast("Problem", error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer an error of Starlette's own (no such path, wrong method)."""
    refused = cast("HTTPException", error)
    kind = {404: "no_such_path", 405: "wrong_method"}.get(refused.status_code, "bad_request")
    return Problem(refused.status_code, kind, f"{request.method} {request.url.path}: {refused.detail}", refused.headers).response()


async def on_broker_error(_: Request, error: Exception) -> Response:
    """Answer that the server could not be asked."""
    return Problem(503, "unavailable", str(error), {"Retry-After": "1"}, code="no_server", retryable=True).response()


async def on_bug(_: Request, __: Exception) -> Response:
    """Answer an exception that nothing expected; the server logs its traceback."""
    return Problem(500, "internal_error", "the gateway has failed to answer; its log says why").response()


T = TypeVar("T")

MOST = 1_048_576
"""Bytes of a request's body."""


async def body(request: Request, most: int = MOST) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: 413, it has more than ``most`` bytes; 499, which nobody reads: the client has gone.
    """
    found = bytearray()
    try:
        async for part in request.stream():
            found += part
            if len(found) > most:
                raise Problem(413, "body_too_large", f"the body has more than {most:,} bytes")
    except ClientDisconnect:
        raise Problem(499, "disconnected", "the client has gone") from None
    return bytes(found)


async def read(request: Request, type: type[T], most: int = MOST) -> T:
    """Return the body as a value of a type.

    Raises:
        Problem: 413, it is too large; 400, it is no JSON; 422, it is JSON of another form.
    """
    data = await body(request, most)
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_body", str(error)) from None
    except DECODE_ERRORS as error:
        raise Problem(400, "invalid_json", f"the body is no JSON: {error}") from None


def answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(encode_data(document), status, headers, "application/json")


TIMEOUT = "Toolbus-Timeout"
SESSION = "Toolbus-Session"
KEY = "Idempotency-Key"
RESUME = "Last-Event-ID"

EVENTS = "text/event-stream"

MOST_KEY = 255
# What can stand in a header and in a line of an event.
_PRINTABLE = re.compile(r"[\x20-\x7e]+").fullmatch
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,30})?").fullmatch


def call_options(request: Request) -> ServiceCallOptions:
    """Return the options of a call that the headers name.

    Raises:
        Problem: 422, a header is wrong.
    """
    options: ServiceCallOptions = {}
    headers = request.headers
    timeout, session, key = headers.get(TIMEOUT), headers.get(SESSION), headers.get(KEY)
    if timeout is not None:
        options["timeout"] = _seconds(timeout)
    if session is not None:
        options["session"] = line(SESSION, session)
    if key is not None:
        # The draft of the header puts the key between quotes, most programs do not.
        options["idempotency_key"] = line(KEY, key[1:-1] if len(key) > 2 and key[0] == key[-1] == '"' else key)
    return options


def wants_events(request: Request) -> bool:
    """Return whether the client asks for a stream of events."""
    return EVENTS in request.headers.get("accept", "").lower()


def _seconds(text: str) -> float:
    if _SECONDS(text.strip()) is None or float(text) <= 0:
        raise Problem(422, "invalid_header", f"{TIMEOUT} is a number of seconds above 0, such as 2.5, not {text[:50]!r}")
    return float(text)


def line(name: str, text: str) -> str:
    """Return a text that can stand in a header.

    Raises:
        Problem: 422, it can't, or is too long.
    """
    if len(text) > MOST_KEY or _PRINTABLE(text) is None:
        raise Problem(422, "invalid_header", f"{name} has 1 to {MOST_KEY} printable ASCII characters")
    return text


def require_json(request: Request) -> None:
    """Check the type of a body. A page of any site may send others to a gateway on its reader's machine, without asking first.

    Raises:
        Problem: 415, it is not JSON.
    """
    said = request.headers.get("content-type", "")
    if said == "application/json":
        return
    kind = said.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    given = f"not {kind[:50]!r}" if kind else "and none is given"
    detail = f"the Content-Type of the body must be application/json, {given}; with curl, use --json in place of -d"
    raise Problem(415, "unsupported_media_type", detail, {"Accept": "application/json"})
