"""Measure the size and depth of arguments, and find references in schemas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from toolbus.schema.work import REFERENCES

_CONTAINERS = (dict, list, tuple)
_MOST_LOOKED_AT = 10_000


def deeper_than(value: Any, levels: int) -> bool:
    """Return whether containers are nested more than ``levels`` levels below the value."""
    # Plain loops, because this is on the hot path of schemas with references.
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, _CONTAINERS) and (levels <= 0 or deeper_than(child, levels - 1)):
            return True
    return False


def levels_of(value: Any, most: int) -> int:
    """Return how many levels of containers are below the value, counting no further than ``most``."""
    return next((levels for levels in range(most) if not deeper_than(value, levels)), most)


def heavier_than(value: object, limit: int) -> bool:
    """Return whether a value holds more parts than ``limit``, where long strings count more; stop walking at the limit."""
    weight = 0
    left: list[object] = [value]
    while left and weight <= limit:
        value = left.pop()
        weight += 1
        if isinstance(value, dict):
            weight += len(value)
            left += islice(value.values(), limit)
        elif isinstance(value, (list, tuple)):
            weight += len(value)
            left += islice(value, limit)
        elif isinstance(value, str):
            weight += len(value) // 64
    return weight > limit


def integers_in(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the properties within which a schema may ask for integers; None when it may do so elsewhere, too."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    if _asks_for_integers([part for key, part in schema.items() if key not in {"properties", "$defs", "definitions"}]):
        return None
    return frozenset(name for name, part in known.items() if _asks_for_integers([part]))


def _asks_for_integers(left: list[Any]) -> bool:
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            kinds = part.get("type")
            if kinds == "integer" or (isinstance(kinds, (list, tuple)) and "integer" in kinds) or any(key in part for key in REFERENCES):
                return True
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
    return False


def holds_float(value: Any) -> bool:
    """Return whether a float is within an object or list that a validator has walked, so that its depth is bounded."""
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, float) or (isinstance(child, _CONTAINERS) and holds_float(child)):
            return True
    return False


def foreign_part(value: object) -> tuple[str | int, ...]:
    """Return the path of a part that JSON can't express, among the first ten thousand; empty when there is none."""
    left: deque[tuple[tuple[str | int, ...], object]] = deque([((), value)])
    for _ in range(_MOST_LOOKED_AT):
        if not left:
            break
        path, part = left.popleft()
        if isinstance(part, dict):
            if not all(isinstance(key, str) and _in_utf8(key) for key in part):
                return path
            left += (((*path, key), each) for key, each in islice(part.items(), _MOST_LOOKED_AT))
        elif isinstance(part, (list, tuple)):
            left += (((*path, index), each) for index, each in enumerate(islice(part, _MOST_LOOKED_AT)))
        elif not (_in_utf8(part) if isinstance(part, str) else part is None or isinstance(part, (bool, int, float))):
            return path
    return ()


def _in_utf8(text: str) -> bool:
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def references(schema: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every reference in a schema, with its path."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in REFERENCES and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from references(value, (*path, key))
    elif isinstance(schema, (list, tuple)):
        for index, value in enumerate(schema):
            yield from references(value, (*path, index))
