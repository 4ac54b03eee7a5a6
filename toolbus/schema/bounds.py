"""How large and deep arguments are, and how much work a schema makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_CONTAINERS = (dict, list, tuple)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords whose parts may all apply to one and the same value.
_TOGETHER = ("anyOf", "oneOf", "allOf", "dependentSchemas", "patternProperties")
# Keywords that apply to nothing by themselves.
_ASIDE = ("$defs", "definitions", "default", "examples", "const", "enum")


def deeper_than(value: Any, levels: int) -> bool:
    """Whether containers are nested further than so many levels below the value."""
    # On the hot path of schemas with references, hence plain loops.
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, _CONTAINERS) and (levels <= 0 or deeper_than(child, levels - 1)):
            return True
    return False


def heavier_than(value: object, limit: int) -> bool:
    """Whether there are more values than the limit, long strings counting for more; walks no further than that."""
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


def references(schema: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every reference in a schema, with its place."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in _REFERENCES and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from references(value, (*path, key))
    elif isinstance(schema, (list, tuple)):
        for index, value in enumerate(schema):
            yield from references(value, (*path, index))


def refers(schema: object) -> bool:
    """Whether a schema holds a reference, and so may be recursive."""
    return any(True for _ in references(schema))


def forks(schema: object) -> bool:
    """Whether one value may follow references in several ways, so that the work can double with each level of nesting.

    It may say so of a schema that is harmless.
    """
    if isinstance(schema, Mapping):
        ways = sum(_ways(key, value) for key, value in schema.items() if key not in _ASIDE)
        return ways > 1 or any(forks(value) for value in schema.values())
    return isinstance(schema, (list, tuple)) and any(forks(part) for part in schema)


def _ways(key: object, value: object) -> int:
    if key in _TOGETHER and isinstance(value, (Mapping, list)):
        parts = value.values() if isinstance(value, Mapping) else value
        return sum(refers(part) for part in parts)
    return key in _REFERENCES or refers(value)
