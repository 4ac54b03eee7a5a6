"""Cast arguments to the types that a schema asks for: texts that contain the value, and nulls that mean "left out"."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from toolbus.bus.schema import refusal
from toolbus.bus.schema.repair import decoded
from toolbus.bus.schema.work import JSON_TYPES, at_pointer, listed, mapped

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.0{1,16})?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_WHOLE = re.compile(r"-?[0-9]+\Z")
# Floats of this size and above can't represent every whole number.
_EXACT = 2**53
_CONTAINERS = {"{": "object", "[": "array"}
_WORDS = {"true": True, "false": False}
_BOUNDS = {
    "minimum": operator.lt, "maximum": operator.gt, "exclusiveMinimum": operator.le, "exclusiveMaximum": operator.ge,
    "minLength": operator.lt, "maxLength": operator.gt,
}  # fmt: skip
_MOST_TEXT = 262_144
_MOST_LEVELS = 32
_MOST_STEPS = 40_000
_MOST_HOPS = 8
_MOST_CHANGES = 20
UNCHANGED = object()


def cast(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments with unambiguous mismatches corrected, and the list of changes; the input is not modified.

    A text becomes the number, boolean, array or object whose JSON it is, where the schema accepts no text. A number without a
    fraction becomes an integer where the schema asks for one. A null is left out where the schema accepts none and requires no
    value. Other valid values stay as they are, and so does a value that can't be corrected, such as a text whose number would lose
    digits or that repeats a key.

    Raises:
        ToolError: ``invalid_arguments``: a float that stands for several integers is where one is asked for.
    """
    caster = _Caster(schema, _MOST_STEPS)
    return caster.value(dict(arguments), schema, (), 0), caster.changes


class _Caster(msgspec.Struct, eq=False):
    """Walks arguments together with their schema."""

    _root: Mapping[str, Any]
    _left: int
    # Whether each text can be read as a container; a schema may ask many times.
    _clear: dict[str, bool] = {}
    changes: list[str] = []

    def value(self, value: Any, schema: Any, path: tuple[str | int, ...], level: int) -> Any:
        """Return the value, corrected by its schema."""
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
        elif isinstance(value, float) and "integer" in kinds and "number" not in kinds:
            return self._whole(value, path)
        elif isinstance(value, (bool, int, float)) and isinstance(schema.get("enum"), list):
            return self._text_for(value, schema["enum"], path)
        if isinstance(value, dict):
            return self._object(value, schema, path, level)
        if isinstance(value, list):
            return self._array(value, schema, path, level)
        return value

    def _read(self, text: str, kinds: tuple[str, ...], path: tuple[str | int, ...]) -> Any:
        read = value_in(text.strip(), kinds, self._clear)
        if read is UNCHANGED:
            return text
        self._note(f"string → {refusal.type_word(read)}", path)
        return read

    def _whole(self, value: float, path: tuple[str | int, ...]) -> float:
        """Return the integer that a float is, or the float itself when it has a fraction."""
        if not value.is_integer():
            return value
        if abs(value) >= _EXACT:
            what = "Expected `integer`, got a float of 2**53 or more, which stands for several; write it in digits alone"
            raise refusal.of([refusal.violation(what, path)])
        self._note("number → integer", path)
        return int(value)

    def _text_for(self, value: float, texts: list[Any], path: tuple[str | int, ...]) -> Any:
        """Return the one text of an enumeration of texts that stands for a boolean or a number, or the value itself."""
        self._left -= len(texts)
        if self._left < 0 or not all(isinstance(text, str) for text in texts):
            return value
        found = [text for text in texts if _stands_for(text, value)]
        if len(found) != 1:
            return value
        self._note(f"{refusal.type_word(value)} → string", path)
        return found[0]

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], path: tuple[str | int, ...], level: int) -> dict[str, Any]:
        known = mapped(schema.get("properties"))
        needed = frozenset(each for each in listed(schema.get("required")) if isinstance(each, str))
        self._left -= len(value)
        # Only the validator knows which names the patterns match, so unlisted names stay as they are beside patterns.
        others = None if schema.get("patternProperties") else schema.get("additionalProperties")
        made: dict[str, Any] = {}
        for name, part in value.items():
            if name not in known:
                made[name] = self.value(part, others, (*path, name), level + 1)
            elif part is None and name not in needed and not self._takes_null(known[name]):
                self._note("null left out", (*path, name))
            else:
                cast = self.value(part, known[name], (*path, name), level + 1)
                if name not in needed and self._is_impossible_default(cast, known[name]):
                    self._note("the default, which the schema refuses, left out", (*path, name))
                else:
                    made[name] = cast
        return made

    def _is_impossible_default(self, value: Any, schema: Any) -> bool:
        """Return whether a value is the default of a schema that accepts it only when it is left out."""
        followed = self._followed(schema)
        if followed is None or isinstance(value, (dict, list)) or not _same(value, followed.get("default", UNCHANGED)):
            return False
        values = followed.get("enum")
        if isinstance(values, list) and not any(_same(value, each) for each in values):
            return True
        return not fits(value, _kinds(followed)) or _is_out_of_bounds(value, followed)

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: tuple[str | int, ...], level: int) -> list[Any]:
        heads, rest = listed(schema.get("prefixItems")), schema.get("items")
        self._left -= len(value)
        return [
            self.value(part, heads[index] if index < len(heads) else rest, (*path, index), level + 1) for index, part in enumerate(value)
        ]

    def _chosen(self, value: Any, branches: list[Any], path: tuple[str | int, ...], level: int) -> Any:
        """Return the value corrected by the one branch that it can belong to; unchanged when there are several."""
        self._left -= len(branches)
        followed = [branch for branch in map(self._followed, branches) if branch is not None]
        if len(followed) != len(branches):
            return value
        fitting = [branch for branch in followed if fits(value, _kinds(branch))]
        if not fitting and isinstance(value, str):
            text = value.strip()
            found = {kinds: value_in(text, kinds, self._clear) for kinds in set(map(_kinds, followed))}
            fitting = [branch for branch in followed if found[_kinds(branch)] is not UNCHANGED]
            # An integer is a number, too: branches that read the same leave no doubt.
            read = [found[_kinds(branch)] for branch in fitting]
            if len(fitting) > 1 and all(type(each) is type(read[0]) and _is_plain(each) and each == read[0] for each in read):
                self._note(f"string → {refusal.type_word(read[0])}", path)
                return read[0]
        elif len(fitting) > 1 and isinstance(value, dict):
            fitting = [branch for branch in fitting if not self._contradicts(value, branch)]
        return self.value(value, fitting[0], path, level + 1) if len(fitting) == 1 else value

    def _contradicts(self, value: dict[str, Any], branch: Mapping[str, Any]) -> bool:
        """Return whether an object can't belong to a branch: a required property is missing, or one has another value than it must."""
        if any(isinstance(name, str) and name not in value for name in listed(branch.get("required"))):
            return True
        known = mapped(branch.get("properties"))
        self._left -= len(value)
        for name in value.keys() & known.keys():
            schema = self._followed(known[name]) or {}
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            if isinstance(values, list) and isinstance(value[name], str) and value[name] not in values:
                return True
        return False

    def _takes_null(self, schema: Any, hops: int = 0) -> bool:
        """Return whether a schema may accept null; also true when that would take too long to find out."""
        self._left -= 1
        if isinstance(schema, bool):
            return schema
        followed = self._followed(schema)
        if followed is None or hops > _MOST_HOPS or self._left < 0:
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
        """Return the schema behind references, or None when there is none."""
        for _ in range(_MOST_HOPS):
            if not isinstance(schema, Mapping):
                return None
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = at_pointer(self._root, reference[1:]) if reference.startswith("#") else None
        return None

    def _note(self, what: str, path: tuple[str | int, ...]) -> None:
        if len(self.changes) < _MOST_CHANGES:
            self.changes.append(f"{what} - at `{refusal.shorten(refusal.place(path), 150)}`")


def _is_plain(value: Any) -> bool:
    """Return whether a value is compared at once."""
    return not isinstance(value, (dict, list))


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON, where numbers are equal by their size and no boolean is a number."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_out_of_bounds(value: Any, schema: Mapping[str, Any]) -> bool:
    size = len(value) if isinstance(value, str) else value
    for key, outside in _BOUNDS.items():
        bound = schema.get(key)
        if isinstance(value, str) is not key.endswith("Length") or isinstance(bound, bool) or not isinstance(bound, (int, float)):
            continue
        if isinstance(size, (int, float)) and outside(size, bound):
            return True
    return False


def _stands_for(text: str, value: float) -> bool:
    plain = text.strip().lower()
    if isinstance(value, bool):
        return plain in _WORDS and _WORDS[plain] is value
    if _NUMBER.match(plain) is None or not (isinstance(value, int) or math.isfinite(value)):
        return False
    return Decimal(plain) == (Decimal(value) if isinstance(value, int) else Decimal(repr(value)))


def _kinds(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return (kinds,)
    # Only known words, so that few different sets exist.
    return tuple(sorted({kind for kind in kinds if isinstance(kind, str)} & JSON_TYPES)) if isinstance(kinds, (list, tuple)) else ()


def fits(value: Any, kinds: Collection[str]) -> bool:
    """Return whether a value is of one of these types, as far as that can be told without looking into it; none means any."""
    word = refusal.type_word(value)
    return (
        not kinds
        or word in kinds
        or (word == "integer" and "number" in kinds)
        or (word == "number" and "integer" in kinds and value == int(value))
    )


def value_in(text: str, kinds: tuple[str, ...], clear: dict[str, bool]) -> Any:
    """Return the value of one of these types that a text contains, or ``UNCHANGED``; ``clear`` remembers which texts are containers."""
    if len(text) > _MOST_TEXT:
        return UNCHANGED
    if text[:1] in _CONTAINERS:
        return _container(text, clear) if _CONTAINERS[text[:1]] in kinds else UNCHANGED
    if "integer" in kinds and _INTEGER.match(text):
        number = int(text.partition(".")[0])
        return number if -(2**63) <= number < 2**63 else UNCHANGED
    if "number" in kinds and _NUMBER.match(text):
        return _number(text)
    if "boolean" in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return None if "null" in kinds and text.lower() == "null" else UNCHANGED


def _number(text: str) -> Any:
    """Return the number as JSON reads it, or ``UNCHANGED`` when its size would change: a digit before the point, or all of it."""
    if _WHOLE.match(text):
        return int(text)
    number, exact = float(text), Decimal(text)
    if not math.isfinite(number) or (number == 0) != (exact == 0):
        return UNCHANGED
    return number if abs(number) < _EXACT or Decimal(repr(number)) == exact else UNCHANGED


def _container(text: str, clear: dict[str, bool]) -> Any:
    try:
        if text not in clear:
            clear[text] = False
            decoded(text, _check_number)
            clear[text] = True
        return msgspec.json.decode(text) if clear[text] else UNCHANGED
    except (ValueError, RecursionError):
        return UNCHANGED


def _check_number(text: str) -> None:
    """Refuse a number within a container that would not be read on its own either."""
    if not _NUMBER.match(text) or _number(text) is UNCHANGED:
        raise ValueError("a number loses digits")


_MOST_TOOLS = 20


def summary(changes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the corrected tools, and the first changes with the tool of each; ``further`` is the number of changes left out."""
    every = [f"{tool}: {change}" for tool, made in sorted(changes.items()) for change in made]
    fields: dict[str, Any] = {"tools": sorted(changes)[:_MOST_TOOLS], "changes": every[:_MOST_CHANGES]}
    if len(every) > _MOST_CHANGES:
        fields["further"] = len(every) - _MOST_CHANGES
    return fields
