"""Messages between a tool service and its clients, with TrustGraph's names and defaults.

Requests have the field ``user`` in versions before April 2026, and no such field since.
"""

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


@dataclass(init=False)
class ToolServiceRequest:
    """One call; ``config`` and ``arguments`` are JSON objects as strings.

    The user may be left out: of values without names, the first is the config when it is a JSON object, otherwise the user.
    """

    user: str = ""
    config: str = ""
    arguments: str = ""

    def __init__(self, *values: str, **named: str) -> None:
        names = ("user", "config", "arguments")[1 if values and values[0].lstrip().startswith("{") else 0 :]
        if len(values) > len(names):
            raise TypeError(f"a request takes at most {', '.join(names)} here, not {len(values)} values")
        given = dict(zip(names, values, strict=False))
        for name, value in named.items():
            if name in given or name not in type(self).__dataclass_fields__:
                raise TypeError(f"a request got {name!r} twice" if name in given else f"a request has no field {name!r}")
            given[name] = value
        self.user, self.config, self.arguments = (given.get(name, "") for name in ("user", "config", "arguments"))


@dataclass
class ToolServiceResponse:
    """One piece of an answer, or the whole answer."""

    error: Error | None = None
    response: str = ""
    end_of_stream: bool = False


@dataclass
class ToolRequest:
    """A request to a flow's tool by its name; only its type is here, since toolbus has no flows."""

    name: str = ""
    parameters: str = ""


@dataclass
class ToolResponse:
    """The answer of a flow's tool: text, or an object as JSON."""

    error: Error | None = None
    text: str = ""
    object: str = ""


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
