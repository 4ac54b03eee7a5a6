"""Read and write the gateway's JSON."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from toolbus.encoding import encode_data
from toolbus.gateway.problems import Problem

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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "invalid_json", f"the body is no JSON: {error}") from None


def answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(encode_data(document), status, headers, "application/json")
