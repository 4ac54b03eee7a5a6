"""Read the headers that are about a call: its deadline, session, idempotency key, and the stream to resume."""

from __future__ import annotations

import re

from starlette.requests import Request

from toolbus.gateway.problems import Problem
from toolbus.options import ServiceCallOptions

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
    accepted = request.headers.get("accept")
    return accepted is not None and EVENTS in accepted.lower()


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
