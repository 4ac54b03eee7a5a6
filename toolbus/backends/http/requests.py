"""Make the request of one call from its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from toolbus.encoding import encode_json
from toolbus.results import ToolError

_IN_PATH = re.compile(r"\{([^{}]+)\}")
_MOST_URL = 16_384
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class Request(msgspec.Struct, frozen=True):
    """One request; ``url`` is everything after the address, quoted."""

    method: str
    url: str
    body: bytes | None


def request_of(method: str, path: str, arguments: Mapping[str, Any], query: Mapping[str, str]) -> Request:
    """Return the request of a call.

    Args:
        method: of HTTP.
        path: of the endpoint, with ``{name}`` where an argument belongs.
        arguments: of the call; those that are not in the path are the JSON body, or the query where there is no body.
        query: what is added to the query.

    Raises:
        ToolError: an argument can't be sent where it must go.
    """
    left = dict(arguments)

    def filled(found: re.Match[str]) -> str:
        name = found[1]
        if name not in arguments:
            raise _unfit(name, "is needed in the path")
        left.pop(name, None)
        return _in_path(name, arguments[name])

    url = _IN_PATH.sub(filled, path)
    pairs = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items()]
    body = None
    if method in _WITHOUT_BODY:
        pairs += [pair for name, value in left.items() for pair in _in_query(name, value)]
    else:
        body = _encoded(left)
    if pairs:
        url += ("&" if "?" in url else "?") + "&".join(pairs)
    if len(url) > _MOST_URL:
        raise _unfit("the address", f"would have more than {_MOST_URL:,} characters")
    return Request(method, url, body)


def _in_path(name: str, value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _unfit(name, "is a list or an object, which a path can't hold")
    text = quote(_plain(value), safe="")
    # Dots would name another path, and so does nothing at all.
    if text in {"", ".", ".."}:
        raise _unfit(name, "can't be empty or dots in a path")
    return text


def _in_query(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [f"{quote(name, safe='')}={quote(_field(each), safe='')}" for each in values if each is not None]


def _field(value: Any) -> str:
    return _encoded(value).decode() if isinstance(value, (dict, list)) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _encoded(value: Any) -> bytes:
    try:
        return encode_json(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _unfit("the arguments", f"can't be sent as JSON: {error}") from None


def _unfit(argument: str, reason: str) -> ToolError:
    return ToolError(f"{argument}: {reason}", type="invalid_arguments", code="unfit")
