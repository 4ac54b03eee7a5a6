"""Settle contradictions within a valid schema, which no argument or not the right one would satisfy.

Enumerations that contradict their type, defaults that are texts of the right value, and ``optional`` or ``nullable`` inside a
property are common in published schemas. The type decides where a value can be read as one of it; otherwise the enumeration does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolbus.safe_text import type_name
from toolbus.schema.casting import fits, value_in

Note = Callable[[str, str], None]

_SUSPECT = frozenset({"enum", "default", "optional", "nullable"})
_TRUE = frozenset({"true", "yes"})
_FALSE = frozenset({"false", "no"})
_MOST_VALUES = 10_000
_UNREAD = object()


def may_contradict(schema: Mapping[str, Any]) -> bool:
    """Return whether any part of a schema has a keyword that may contradict another."""
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            if not _SUSPECT.isdisjoint(part):
                return True
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
    return False


def settle(made: dict[str, Any], path: str, note: Note) -> None:
    """Settle the contradictions of one schema in place, whose parts are settled already."""
    if made.get("nullable") in (True, False) and "type" in made:
        _nullable(made, path, note)
    values = made.get("enum")
    if isinstance(values, list) and 0 < len(values) <= _MOST_VALUES:
        _enumeration(made, values, path, note)
    if "default" in made:
        _default(made, path, note)


def flag(value: object) -> bool | None:
    """Return what ``true``, ``"yes"`` and the like say inside a property, or None for anything else."""
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _kinds(made: Mapping[str, Any]) -> list[str]:
    kinds = made.get("type")
    return [kinds] if isinstance(kinds, str) else [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []


def _set_kinds(made: dict[str, Any], kinds: list[str]) -> None:
    made["type"] = kinds[0] if len(kinds) == 1 else kinds


def _nullable(made: dict[str, Any], path: str, note: Note) -> None:
    """Write OpenAPI's ``nullable`` as a type."""
    kinds = _kinds(made)
    if made.pop("nullable") and "null" not in kinds:
        _set_kinds(made, [*kinds, "null"])
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
    note(path, "wrote 'nullable' as a type")


def _enumeration(made: dict[str, Any], values: list[Any], path: str, note: Note) -> None:
    kinds = _kinds(made)
    if not kinds or all(fits(value, kinds) for value in values):
        return
    if "array" in kinds and not any(isinstance(value, list) for value in values):
        _move_to_items(made, values, path, note)
        return
    read = list(_distinct(_as_one_of(kinds, value) for value in values))
    if all(fits(value, kinds) for value in read):
        made["enum"] = read
        note(path, f"made the values of 'enum' fit the type {made['type']!r}")
    elif "object" in kinds or kinds == ["boolean"]:
        # Their values are not told by other values: yes and no may be true and false, or the other way round.
        del made["enum"]
        note(path, f"left out 'enum', whose values are not of the type {made['type']!r}")
    else:
        used = [kind for kind in kinds if any(fits(value, [kind]) for value in read)]
        others = [_kind(value) for value in read if not fits(value, kinds)]
        made["enum"] = read
        _set_kinds(made, list(dict.fromkeys([*used, *others])))
        note(path, f"made the type that of the values of 'enum', {made['type']!r}")


def _move_to_items(made: dict[str, Any], values: list[Any], path: str, note: Note) -> None:
    """Make an array's enumeration of single values that of its items."""
    items = made.get("items", {})
    if not isinstance(items, dict):
        return
    del made["enum"]
    if "enum" not in items:
        made["items"] = {**items, "enum": values}
        settle(made["items"], f"{path}.items", note)
    note(path, "moved 'enum' to the items")


def _as_one_of(kinds: list[str], value: Any) -> Any:
    """Return the value of one of these types that is meant by a value of another, or the value itself."""
    if fits(value, kinds):
        return value
    if isinstance(value, str):
        read = value_in(value.strip(), tuple(kinds), _UNREAD)
        return value if read is _UNREAD else read
    if "string" in kinds and isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if "string" in kinds and isinstance(value, (int, float)) else value


def _default(made: dict[str, Any], path: str, note: Note) -> None:
    kinds, default = _kinds(made), made["default"]
    if not kinds or not isinstance(default, str):
        return
    values = made.get("enum")
    meant = _as_one_of(kinds, default)
    if isinstance(values, list) and meant is default and default not in values:
        near = [value for value in values if isinstance(value, str) and value.lower() == default.strip().lower()]
        meant = near[0] if len(near) == 1 else default
    if meant is not default:
        made["default"] = meant
        note(
            path,
            f"made the default {default[:40]!r} one of its values"
            if isinstance(meant, str)
            else f"made the default {default[:40]!r} fit the type",
        )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, known in (("string", str), ("integer", int), ("number", float), ("array", list)):
        if isinstance(value, known):
            return kind
    return "object"


def _distinct(values: Iterator[Any]) -> Iterator[Any]:
    """Yield each value once; 1, 1.0 and true are three."""
    seen: set[str] = set()
    for value in values:
        key = f"{type_name(value)} {value!r}"
        if key not in seen:
            seen.add(key)
            yield value
