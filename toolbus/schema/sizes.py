"""Check strict schemas against the limits that OpenAI and Anthropic document; beyond one, they refuse the whole request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_PROPERTIES = 5_000
MOST_TEXT = 120_000
"""Most characters of the names of properties and definitions, and of the values of enumerations, together."""

_MOST_VALUES = 1_000
# An enumeration of more values than this may have fewer characters.
_MANY_VALUES = 250
_MOST_OF_MANY = 15_000


MOST_STRICT_TOOLS = 20
MOST_UNIONS = 16
"""Most strict tools of a request to Anthropic, and most parts of their schemas, together, that are of several types."""


def fits(schema: Mapping[str, Any]) -> bool:
    """Return whether a strict schema is within the limits; nulls that strict mode has added count, too."""
    properties = values = text = 0
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        for names in (part.get("properties", {}), part.get("$defs", {}), part.get("definitions", {})):
            text += sum(map(len, names))
            left += names.values()
        properties += len(part.get("properties", {}))
        enumerated = part.get("enum", ())
        size = sum(map(_length, enumerated))
        if len(enumerated) > _MANY_VALUES and size > _MOST_OF_MANY:
            return False
        values += len(enumerated)
        text += size
        left += part.get("anyOf", ())
        if "items" in part:
            left.append(part["items"])
    return properties <= MOST_PROPERTIES and values <= _MOST_VALUES and text <= MOST_TEXT


def unions(schema: Mapping[str, Any]) -> int:
    """Return how many parts of a strict schema are of several types; a property that may be left out is one, since it may be null."""
    found = 0
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        found += isinstance(part.get("type"), list) or "anyOf" in part
        left += [*part.get("properties", {}).values(), *part.get("anyOf", ())]
        if "items" in part:
            left.append(part["items"])
    return found


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else len(str(value))
