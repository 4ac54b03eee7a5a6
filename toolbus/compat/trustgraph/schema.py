"""What travels between a tool service and its clients, under that project's names and with its defaults."""

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
    """Why a request failed."""

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
    """One piece of an answer, or all of it."""

    error: Error | None = None
    response: str = ""
    end_of_stream: bool = False


class TooManyRequests(Exception):
    """Raised by ``invoke`` when its own supplier limits it: the call is tried again later."""


class Message:
    """A request or response on its way, with its properties; ``id`` among them correlates the two."""

    def __init__(self, value: Any, properties: Mapping[str, str]) -> None:
        self._value = value
        self._properties = dict(properties)

    def value(self) -> Any:
        """What is said."""
        return self._value

    def properties(self) -> dict[str, str]:
        """What is said about it."""
        return self._properties


def text_of(response: object) -> str:
    """An observation: a string as it is, anything else as JSON."""
    return response if isinstance(response, str) else json.dumps(response)
