"""Messages between a tool service and its clients, with TrustGraph's names and defaults, and both forms of its signatures."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ConfigurationError


class TooManyRequests(Exception):
    """Raised by ``invoke`` when an upstream service limits it; the call is tried again later."""


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
        vars(self).update(_bound("a request", names, values, named, user="", config="", arguments=""))


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


def takes_user(invoke: Callable[..., Any]) -> bool:
    """Return whether a service's ``invoke`` takes ``(user, config, arguments)`` instead of ``(config, arguments)``.

    The first parameter's name decides, then the number of parameters without a default. ``*args`` gets all three.

    Raises:
        ConfigurationError: it can be called in neither form.
    """
    return _takes_user(getattr(invoke, "__func__", invoke), inspect.ismethod(invoke))


@functools.lru_cache(256)
def _takes_user(function: Callable[..., Any], bound: bool) -> bool:
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    positional = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    required = [each for each in positional if each.default is each.empty]
    more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    named_only = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    first = positional[0].name if positional else ""
    user = first == "user" or (first != "config" and (more or len(required) != 2))
    taken = 3 if user else 2
    if named_only or len(required) > taken or (len(positional) < taken and not more):
        given = ", ".join(str(each) for each in parameters)
        raise ConfigurationError(f"invoke({given}) can't be called: it takes (config, arguments) or (user, config, arguments)")
    return user


def request_of(
    method: str, values: tuple[Any, ...], named: Mapping[str, Any], *, callback: bool = False
) -> tuple[ToolServiceRequest, float, Any]:
    """Return the request, the timeout and the callback of ``call(user, config, arguments, …)`` or ``call(config, arguments, …)``.

    A first argument that is a text is the user; so is None, when two objects follow it.

    Raises:
        TypeError: they fit neither form.
    """
    user = ["user"] if "user" not in named and _starts_with_user(values, named) else []
    names = [*user, "config", "arguments", *(["callback"] if callback else []), "timeout"]
    found = _bound(f"{method}()", names, values, named, timeout=600)
    for name in ("config", "arguments"):
        if not isinstance(found[name] or {}, Mapping):
            raise TypeError(f"{name} of {method}() is an object or None, not {type_name(found[name])}")
    config, arguments = (json.dumps(dict(found[name] or {})) for name in ("config", "arguments"))
    request = ToolServiceRequest(user=str(found["user"] or ""), config=config, arguments=arguments)
    return request, float(found["timeout"]), found.get("callback")


def _bound(what: str, names: Sequence[str], values: Sequence[Any], named: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Return arguments by their names; the user may be named where it is not among them, or left out.

    Raises:
        TypeError: they are too many, too few, or given twice; the message has what there is.
    """
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(name, Parameter.empty)) for name in names]
    if "user" not in names:
        parameters.append(Parameter("user", Parameter.KEYWORD_ONLY, default=""))
    try:
        found = inspect.Signature(parameters).bind(*values, **named)
    except TypeError as error:
        raise TypeError(f"{what}: {error}; it takes ([user,] {', '.join(name for name in names if name != 'user')})") from None
    found.apply_defaults()
    return found.arguments


def _starts_with_user(values: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    if not values:
        return False
    if isinstance(values[0], str):
        return True
    # call(None, {…}, {…}): a third object can be neither a timeout nor a callback.
    two_objects = len(values) > 2 and isinstance(values[1], Mapping) and isinstance(values[2], Mapping)
    return values[0] is None and (two_objects or "config" in named)
