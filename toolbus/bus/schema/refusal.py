"""Word the errors of refused arguments: short, with the place and what was expected there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import CallRefused

MOST_VIOLATIONS = 5

_MESSAGE_LIMIT = 1000
_PART_LIMIT = 300
_NAME_LIMIT = 64
_NAMES_SHOWN = 12
_HINT_LIMIT = 120
# Left out of hints, which show the shape only.
_PROSE = ("description", "title", "default", "examples")

_PLAIN_KEY = re.compile(r"\w+\Z")


def of(violations: Sequence[str]) -> CallRefused:
    """Return the error for arguments with these violations; more than five are only hinted at."""
    parts = [shorten(violation, _PART_LIMIT) for violation in violations[:MOST_VIOLATIONS]]
    if len(violations) > MOST_VIOLATIONS:
        parts.append("and more")
    return CallRefused(shorten("; ".join(parts), _MESSAGE_LIMIT), type="invalid_arguments")


def violation(what: str, path: Iterable[str | int] = ()) -> str:
    """Return the text of one violation with its place."""
    return f"{shorten(what, _PART_LIMIT // 2)} - at `{shorten(place(path), _PART_LIMIT // 2)}`"


def not_an_object(value: object) -> CallRefused:
    """Return the error for arguments that are not an object."""
    return of([violation(f"Expected `object`, got `{type_word(value)}`")])


def as_dict(arguments: object) -> dict[str, Any]:
    """Return arguments as a dictionary.

    Raises:
        ToolError: ``invalid_arguments``: they are not an object.
    """
    if not isinstance(arguments, Mapping):
        raise not_an_object(arguments)
    return dict(arguments)


def missing(name: str, path: Iterable[str | int] = ()) -> str:
    """Return the violation for a required property that the object at ``path`` lacks."""
    return violation(f"Missing required {quote(name)}", (*path, name))


def unexpected(names: Iterable[str], known: Iterable[str], path: Iterable[str | int] = ()) -> str:
    """Return the violation for properties that the object at ``path`` may not have, with those that it may have."""
    return f"{violation(f'Unexpected {_listed(names)}', path)} (known: {_listed(known) or 'none'})"


def hint(schema: object) -> str:
    """Return a schema in a few words, to append to a violation; empty when the schema says nothing about the shape."""
    shape = {key: value for key, value in schema.items() if key not in _PROSE} if isinstance(schema, dict) else {}
    return f" (schema: {shorten(json.dumps(shape, ensure_ascii=False, separators=(',', ':'), default=str), _HINT_LIMIT)})" if shape else ""


def place(path: Iterable[str | int]) -> str:
    """Return a path as ``$.key[0]``, where ``$`` is the arguments object."""
    return "$" + "".join(_step(step) for step in path)


def quote(name: str) -> str:
    """Return a name in backticks, cut when it is long."""
    return f"`{shorten(name, _NAME_LIMIT)}`"


def shorten(text: str, limit: int) -> str:
    """Return the text, or its start with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def type_word(value: object) -> str:
    """Return JSON's word for a value's type, or Python's word where JSON has none: for a type, NaN and infinity."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number" if math.isfinite(value) else str(value)
        case str():
            return "string"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
    return type_name(value)


def _listed(names: Iterable[str]) -> str:
    shown = [quote(name) for name in names]
    return ", ".join([*shown[:_NAMES_SHOWN], "…"] if len(shown) > _NAMES_SHOWN else shown)


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.match(step) else f"[{json.dumps(step, ensure_ascii=False)}]"
