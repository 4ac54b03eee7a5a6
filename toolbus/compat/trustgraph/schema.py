"""Messages between a tool service and its clients, with TrustGraph's names and defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUEST_QUEUE = "non-persistent://tg/request/{}"
RESPONSE_QUEUE = "non-persistent://tg/response/{}"

DEFAULT_USER = "trustgraph"


@dataclass
class Error:
    """The reason why a request failed."""

    type: str = ""
    message: str = ""


@dataclass
class ToolServiceRequest:
    """One call; ``config`` and ``arguments`` are JSON objects as strings."""

    user: str = ""
    config: str = ""
    arguments: str = ""


@dataclass
class ToolServiceResponse:
    """One piece of an answer, or the whole answer."""

    error: Error | None = None
    response: str = ""
    end_of_stream: bool = False


class TooManyRequests(Exception):
    """Raised by ``invoke`` when an upstream service limits it; the call is tried again later."""


class Message:
    """A request or response with its properties; the property ``id`` links the two."""

    def __init__(self, value: Any, properties: Mapping[str, str]) -> None:
        self._value = value
        self._properties = dict(properties)

    def value(self) -> Any:
        """Return the request or response."""
        return self._value

    def properties(self) -> dict[str, str]:
        """Return the properties."""
        return self._properties


def text_of(response: object) -> str:
    """Return an observation: a string unchanged, anything else as JSON."""
    return response if isinstance(response, str) else json.dumps(response)
