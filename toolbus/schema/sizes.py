"""Check strict schemas against the size limits that OpenAI documents; a schema beyond one makes it refuse the whole request."""

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


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else len(str(value))
