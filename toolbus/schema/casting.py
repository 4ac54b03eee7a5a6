"""Arguments of almost the right types: texts that say the value a schema asks for, and nulls that stand for "left out"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.schema import refusal

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.0{1,16})?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_WORDS = {"true": True, "false": False}
_MOST_TEXT = 262_144
_MOST_LEVELS = 32
_MOST_VALUES = 20_000
_MOST_HOPS = 8
_MOST_CHANGES = 20
_UNCHANGED = object()


def cast(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments with what the schema leaves no doubt about put right, and what was changed; the given ones stay as they are.

    A text becomes the number, boolean, array or object that it is the JSON of, where the schema takes no text. A null is
    left out where the schema takes none and asks for no value. Meant for arguments that were refused: what is valid comes
    out as it is, and what can't be put right does, too.
    """
    caster = _Caster(schema)
    value = caster.value(dict(arguments), schema, (), 0)
    return (value if isinstance(value, dict) else dict(arguments)), caster.changes


class _Caster:
    """Walks arguments and their schema together."""

    __slots__ = ("_left", "_root", "changes")

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_VALUES
        self.changes: list[str] = []

    def value(self, value: Any, schema: Any, path: tuple[str | int, ...], level: int) -> Any:
        """The value, put right by its schema."""
        self._left -= 1
        schema = self._followed(schema)
        if schema is None or level > _MOST_LEVELS or self._left < 0:
            return value
        parts = schema.get("allOf")
        if isinstance(parts, list):
            for part in parts:
                value = self.value(value, part, path, level + 1)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                value = self._chosen(value, schema[keyword], path, level)
        kinds = _kinds(schema)
        if kinds and isinstance(value, str) and "string" not in kinds:
            value = self._read(value, kinds, path)
        if isinstance(value, dict):
            return self._object(value, schema, path, level)
        if isinstance(value, list):
            return self._array(value, schema, path, level)
        return value

    def _read(self, text: str, kinds: tuple[str, ...], path: tuple[str | int, ...]) -> Any:
        read = _said(text.strip(), kinds)
        if read is _UNCHANGED:
            return text
        self._note(f"string → {refusal.type_word(read)}", path)
        return read

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], path: tuple[str | int, ...], level: int) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        needed = required if isinstance(required, (list, tuple)) else ()
        others = schema.get("additionalProperties")
        made: dict[str, Any] = {}
        for name, part in value.items():
            if name not in known:
                made[name] = self.value(part, others, (*path, name), level + 1) if isinstance(others, Mapping) else part
            elif part is None and name not in needed and not self._takes_null(known[name], 0):
                self._note("null left out", (*path, name))
            else:
                made[name] = self.value(part, known[name], (*path, name), level + 1)
        return made

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: tuple[str | int, ...], level: int) -> list[Any]:
        first = schema.get("prefixItems")
        heads = first if isinstance(first, list) else []
        rest = schema.get("items")
        return [
            self.value(part, heads[index] if index < len(heads) else rest, (*path, index), level + 1) for index, part in enumerate(value)
        ]

    def _chosen(self, value: Any, branches: list[Any], path: tuple[str | int, ...], level: int) -> Any:
        """The value by the one branch that it can belong to; when there are several, as it is."""
        followed = [branch for branch in map(self._followed, branches) if branch is not None]
        if len(followed) != len(branches):
            return value
        fitting = [branch for branch in followed if _fits(value, _kinds(branch))]
        if not fitting and isinstance(value, str):
            fitting = [branch for branch in followed if _said(value.strip(), _kinds(branch)) is not _UNCHANGED]
        return self.value(value, fitting[0], path, level + 1) if len(fitting) == 1 else value

    def _takes_null(self, schema: Any, hops: int) -> bool:
        if isinstance(schema, bool):
            return schema
        followed = self._followed(schema)
        if followed is None or hops > _MOST_HOPS:
            return True
        for keyword in ("anyOf", "oneOf"):
            branches = followed.get(keyword)
            if isinstance(branches, list) and not any(self._takes_null(branch, hops + 1) for branch in branches):
                return False
        parts = followed.get("allOf")
        if isinstance(parts, list) and not all(self._takes_null(part, hops + 1) for part in parts):
            return False
        values = followed.get("enum")
        if isinstance(values, list) and None not in values:
            return False
        if "const" in followed and followed["const"] is not None:
            return False
        kinds = _kinds(followed)
        return not kinds or "null" in kinds

    def _followed(self, schema: Any) -> Mapping[str, Any] | None:
        """The schema behind references; None when there is none to be found."""
        for _ in range(_MOST_HOPS):
            if not isinstance(schema, Mapping):
                return None
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._at(reference)
        return None

    def _at(self, reference: str) -> Any:
        found: Any = self._root
        for step in reference[2:].split("/") if reference.startswith("#/") else ():
            if not isinstance(found, Mapping):
                return None
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        return found if reference.startswith("#") else None

    def _note(self, what: str, path: tuple[str | int, ...]) -> None:
        if len(self.changes) < _MOST_CHANGES:
            self.changes.append(f"{what} - at `{refusal.shorten(refusal.place(path), 150)}`")


def _kinds(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return (kinds,)
    return tuple(kind for kind in kinds if isinstance(kind, str)) if isinstance(kinds, (list, tuple)) else ()


def _fits(value: Any, kinds: tuple[str, ...]) -> bool:
    word = refusal.type_word(value)
    return not kinds or word in kinds or (word == "integer" and "number" in kinds) or (word == "number" and "integer" in kinds)


def _said(text: str, kinds: tuple[str, ...]) -> Any:
    """The value of one of these kinds that a text says, if it says one."""
    if not kinds or "string" in kinds or len(text) > _MOST_TEXT:
        return _UNCHANGED
    if text[:1] in {"{", "["}:
        return _container(text, kinds)
    if "integer" in kinds and _INTEGER.match(text):
        number = int(text.partition(".")[0])
        return number if -(2**63) <= number < 2**63 else _UNCHANGED
    if "number" in kinds and _NUMBER.match(text):
        return _number(text)
    if "boolean" in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return None if "null" in kinds and text.lower() == "null" else _UNCHANGED


def _number(text: str) -> Any:
    if _INTEGER.match(text) and "." not in text and -(2**63) <= int(text) < 2**63:
        return int(text)
    number = float(text)
    return _UNCHANGED if number in (float("inf"), -float("inf")) else number


def _container(text: str, kinds: tuple[str, ...]) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _UNCHANGED
    return value if refusal.type_word(value) in kinds else _UNCHANGED
