"""Make the request of an operation from a call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from toolbus.encoding import encode_json
from toolbus.mounts.openapi.operations import Body, Operation, Parameter
from toolbus.results import ToolError

_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "simple": ","}
_MOST_URL = 16_384


def request_of(
    operation: Operation, base: str, arguments: Mapping[str, Any], headers: Mapping[str, str], query: Mapping[str, str]
) -> httpx.Request:
    """Return the request of one call.

    Args:
        operation: what is called.
        base: the address that its path follows.
        arguments: of the call, which fit the operation's schema.
        headers, query: what the operator adds.

    Raises:
        ToolError: an argument can't be sent where it must go.
    """
    path, pairs, sent = operation.path, [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items()], dict(headers)
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _in_path(parameter, value))
        elif parameter.place == "query":
            pairs += _in_query(parameter, value)
        elif parameter.name.lower() not in {name.lower() for name in headers}:
            sent[parameter.name] = _in_header(parameter, value)
    content, media_type = _content(operation.body, arguments)
    if media_type:
        sent["Content-Type"] = media_type
    url = base.rstrip("/") + path + (f"?{'&'.join(pairs)}" if pairs else "")
    if len(url) > _MOST_URL:
        raise _unfit("the address", f"would have more than {_MOST_URL:,} characters")
    sent.setdefault("Accept", "application/json, */*;q=0.5")
    return httpx.Request(operation.method.upper(), url, headers=sent, content=content)


def _in_path(parameter: Parameter, value: Any) -> str:
    text = _joined(parameter, value, "")
    # Dots would name another path, and so does nothing at all.
    if text in {"", ".", ".."}:
        raise _unfit(parameter.argument, "can't be empty or dots in a path")
    return text


def _in_query(parameter: Parameter, value: Any) -> list[str]:
    name = quote(parameter.name, safe="")
    if parameter.as_json:
        return [f"{name}={quote(encode_json(value).decode(), safe='')}"]
    if isinstance(value, dict):
        if parameter.style == "deepObject":
            return [f"{name}%5B{quote(str(key), safe='')}%5D={_text(parameter, each)}" for key, each in value.items()]
        if parameter.explode:
            return [f"{quote(str(key), safe='')}={_text(parameter, each)}" for key, each in value.items()]
    if isinstance(value, list) and parameter.explode:
        return [f"{name}={_text(parameter, each)}" for each in value]
    return [f"{name}={_joined(parameter, value, _SEPARATORS.get(parameter.style, ','))}"]


def _in_header(parameter: Parameter, value: Any) -> str:
    text = encode_json(value).decode() if parameter.as_json or isinstance(value, (dict, list)) else _plain(value)
    if not text.isascii() or not text.isprintable():
        raise _unfit(parameter.argument, "has characters that a header can't hold")
    return text


def _joined(parameter: Parameter, value: Any, separator: str) -> str:
    separator = separator or ","
    if isinstance(value, list):
        return separator.join(_text(parameter, each) for each in value)
    if isinstance(value, dict):
        joint = "=" if parameter.explode else separator
        return separator.join(f"{quote(str(key), safe='')}{joint}{_text(parameter, each)}" for key, each in value.items())
    return _text(parameter, value)


def _text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, (dict, list)):
        if parameter.place == "path":
            raise _unfit(parameter.argument, "has lists or objects within, which a path can't hold")
        return quote(encode_json(value).decode(), safe="")
    return quote(_plain(value), safe="")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _content(body: Body | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """Return the body and its media type; nothing when no argument is part of it."""
    if body is None:
        return None, ""
    if body.whole:
        if body.whole not in arguments:
            return None, ""
        value = arguments[body.whole]
    else:
        value = {name: arguments[argument] for argument, name in body.fields.items() if argument in arguments}
    if body.media_type == "text/plain":
        return str(value).encode(), "text/plain; charset=utf-8"
    if body.media_type == "application/x-www-form-urlencoded":
        pairs = [(name, each) for name, value in value.items() for each in (value if isinstance(value, list) else [value])]
        fields = (f"{quote(name, safe='')}={quote(_field(each), safe='')}" for name, each in pairs)
        return "&".join(fields).encode(), body.media_type
    try:
        return encode_json(value), body.media_type
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _unfit("the body", f"can't be sent as JSON: {error}") from None


def _field(value: Any) -> str:
    return encode_json(value).decode() if isinstance(value, (dict, list)) else _plain(value)


def _unfit(argument: str, reason: str) -> ToolError:
    return ToolError(f"{argument}: {reason}", type="invalid_arguments", code="unfit")
