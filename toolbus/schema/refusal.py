"""The words in which arguments are refused: short, with the place and what was expected there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from toolbus.results import ToolError

MOST_VIOLATIONS = 5

_MESSAGE_LIMIT = 1000
_PART_LIMIT = 300
_NAME_LIMIT = 64
_NAMES_SHOWN = 12
_HINT_LIMIT = 120
# What a hint leaves out: it is about the shape.
_PROSE = ("description", "title", "default", "examples")

_PLAIN_KEY = re.compile(r"\w+\Z")


def of(violations: Sequence[str]) -> ToolError:
    """The error for arguments with these violations; those past the fifth are only hinted at."""
    parts = [shorten(violation, _PART_LIMIT) for violation in violations[:MOST_VIOLATIONS]]
    if len(violations) > MOST_VIOLATIONS:
        parts.append("and more")
    return ToolError(shorten("; ".join(parts), _MESSAGE_LIMIT), type="invalid_arguments")


def violation(what: str, path: Iterable[str | int] = ()) -> str:
    """One violation and its place."""
    return f"{shorten(what, _PART_LIMIT // 2)} - at `{shorten(place(path), _PART_LIMIT // 2)}`"


def not_an_object(value: object) -> ToolError:
    """The error for arguments that are not an object at all."""
    return of([violation(f"Expected `object`, got `{type_word(value)}`")])


def missing(name: str, path: Iterable[str | int] = ()) -> str:
    """A required property that the object at ``path`` lacks."""
    return violation(f"Missing required {quote(name)}", (*path, name))


def unexpected(names: Iterable[str], known: Iterable[str], path: Iterable[str | int] = ()) -> str:
    """Properties that the object at ``path`` may not have, with those it may."""
    return f"{violation(f'Unexpected {_listed(names)}', path)} (known: {_listed(known) or 'none'})"


def hint(schema: object) -> str:
    """A schema in a few words, to follow a violation; empty when there is nothing to say."""
    shape = {key: value for key, value in schema.items() if key not in _PROSE} if isinstance(schema, dict) else {}
    return f" (schema: {shorten(json.dumps(shape, ensure_ascii=False, separators=(',', ':'), default=str), _HINT_LIMIT)})" if shape else ""


def place(path: Iterable[str | int]) -> str:
    """A path as ``$.key[0]``, where ``$`` is the arguments object."""
    return "$" + "".join(_step(step) for step in path)


def quote(name: str) -> str:
    """A name in backticks, cut when it is long."""
    return f"`{shorten(name, _NAME_LIMIT)}`"


def shorten(text: str, limit: int) -> str:
    """The text, or its start and an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def type_word(value: object) -> str:
    """JSON's word for a value's type; Python's where JSON has none."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
    return type(value).__name__


def _listed(names: Iterable[str]) -> str:
    shown = [quote(name) for name in names]
    return ", ".join([*shown[:_NAMES_SHOWN], "…"] if len(shown) > _NAMES_SHOWN else shown)


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.match(step) else f"[{json.dumps(step, ensure_ascii=False)}]"
