"""Read JSON documents that people write: nothing in them may be lost."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec

from toolbus.bus.schema.work import REFERENCES

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"


class RepeatedKeyError(ValueError):
    """A key stands twice in one object.

    Attributes:
        key: the key.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {json.dumps(key)} stands twice in one object; write it once")
        self.key = key


def read_document(text: str | bytes, kind: type[T]) -> T:
    """Return a JSON document of a known type.

    Raises:
        ValueError: it is not JSON, has another type, or has a key twice in one object; the message says where.
    """
    try:
        data = (text.encode() if isinstance(text, str) else text).removeprefix(_BOM)
        if not data.strip():
            raise ValueError("it is empty")
        value = msgspec.json.decode(data, type=kind)
        # The decoder keeps the last of equal keys, but the first may be the one that was meant.
        json.loads(data, object_pairs_hook=check_keys, parse_int=str, parse_float=str)
    except UnicodeError:
        raise ValueError("its text is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the pairs; the ``object_pairs_hook`` for readers of the standard library's kind.

    Raises:
        RepeatedKeyError: a key stands twice.
    """
    check_keys(pairs)
    return dict(pairs)


def check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Check that each key of an object stands once.

    Raises:
        RepeatedKeyError: a key stands twice.
    """
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise RepeatedKeyError(key)
        seen.add(key)


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
