"""Correct invalid schemas of tools to valid JSON Schema.

Tool servers and datasets write ``dict`` and ``float``, types in capitals, ``required: true`` inside a property, or ``null``
where nothing was meant. Models and validators don't understand any of it. A valid schema is never changed; an invalid one is
rewritten to what was meant, and what still can't be understood is left out, part by part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus.schema.casting import UNCHANGED, fits, value_in
from toolbus.bus.schema.refusal import shorten, type_word
from toolbus.bus.schema.work import JSON_TYPES, objects_in
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.descriptors import TYPE_WORDS
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import DescriptorError

if TYPE_CHECKING:
    from toolbus.bus.schema.arguments import SchemaFlaw

_WORDS = TYPE_WORDS | {
    "char": "string", "varchar": "string", "uuid": "string", "url": "string", "uri": "string",
    "date": "string", "datetime": "string", "time": "string", "timestamp": "string", "path": "string",
    "file": "string", "email": "string", "bytes": "string", "enum": "string",
    "double": "number", "decimal": "number", "numeric": "number", "real": "number",
    "long": "integer", "int32": "integer", "int64": "integer", "short": "integer",
    "dictionary": "object", "map": "object", "hashmap": "object", "mapping": "object",
    "json": "object", "record": "object", "struct": "object",
    "tuple": "array", "set": "array", "sequence": "array", "arraylist": "array", "iterable": "array",
    "null": "null", "none": "null", "nonetype": "null",
}  # fmt: skip
_GENERIC = re.compile(r"(\w+)\s*[\[<(](.*)[\]>)]\Z", re.DOTALL)
_DRAFT = re.compile(r"https?://json-schema\.org/draft")
_NUMBERS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems"}
    | {"minProperties", "maxProperties"}
)
_MAY_BE_NULL = frozenset({"default", "const", "example"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
Note = Callable[[str, str], None]

# Keywords that may contradict others.
_SUSPECT = frozenset({"enum", "default", "optional", "nullable"})
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
_MOST_VALUES = 10_000
_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA = frozenset({"items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames"})
_MOST_LEVELS = 64
_MOST_FLAWS = 64
_MOST_CHANGES = 20


def mended(schema: object) -> tuple[dict[str, Any], list[str]]:
    """Return the schema of a tool's arguments as valid JSON Schema, and the list of changes; a valid schema stays as it is.

    Raises:
        DescriptorError: the schema does not describe an object; the message gives the reason.
    """
    if isinstance(schema, Mapping) and _accepts_objects(schema.get("type", "object")):
        given = dict(schema)
        if _flaw(given) is None:
            return _settled(given)
    if not isinstance(schema, Mapping):
        raise DescriptorError(f"a JSON Schema must be an object, not {type_name(schema)}", path="$.parameters")
    mender = _Mender()
    made = mender.schema(schema, "$", 0)
    kinds = made.setdefault("type", "object")
    if kinds == [] or not _accepts_objects(kinds):
        raise DescriptorError(f"the parameters must be an object schema, not {schema.get('type')!r}", path="$.parameters.type")
    _leave_out_flaws(made, mender)
    return made, mender.changes


def _settled(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a valid schema without contradictions; as it is when it has none."""
    if all(_SUSPECT.isdisjoint(part) for part in objects_in(given)):
        return given, []
    mender = _Mender()
    try:
        made = mender.schema(given, "$", 0)
    except DescriptorError:
        return given, []
    return (made, mender.changes) if mender.changes and _flaw(made) is None else (given, [])


def mended_document(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a tool's document with valid ``parameters``, and the list of changes.

    Raises:
        DescriptorError: see ``mended``.
    """
    fields = dict(document)
    if fields.get("parameters") is None:
        return fields, []
    fields["parameters"], changes = mended(fields["parameters"])
    return fields, changes


def _flaw(schema: dict[str, Any]) -> SchemaFlaw | None:
    from toolbus.bus.schema.arguments import flaw_of  # noqa: PLC0415 - few programs correct schemas

    return flaw_of(schema)


def _accepts_objects(kinds: object) -> bool:
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def _leave_out_flaws(made: dict[str, Any], mender: _Mender) -> None:
    """Leave out what is still invalid, one keyword after the other."""
    for _ in range(_MOST_FLAWS):
        found = _flaw(made)
        if found is None:
            return
        path, message = found.path, shorten(found.reason, 100)
        if not path:
            raise DescriptorError(f"impossible JSON Schema: {message}", path="$.parameters")
        holder: Any = made
        for step in path[:-1]:
            holder = holder[step]
        mender.note("$" + "".join(f".{step}" for step in path), f"left out ({message})")
        del holder[path[-1]]
    raise DescriptorError(f"impossible JSON Schema: more than {_MOST_FLAWS} things are wrong with it", path="$.parameters")


class _Mender(msgspec.Struct, eq=False):
    """Corrects one schema; ``changes`` lists what was changed, up to a limit."""

    changes: list[str] = []

    def note(self, path: str, what: str) -> None:
        """Record a change."""
        if len(self.changes) < _MOST_CHANGES:
            self.changes.append(f"{path}: {what}"[:200])

    def schema(self, schema: Mapping[str, Any], path: str, level: int) -> dict[str, Any]:
        """Return a corrected schema, including everything below it."""
        if level > _MOST_LEVELS:
            raise DescriptorError(f"impossible JSON Schema: more than {_MOST_LEVELS} levels", path="$.parameters")
        made: dict[str, Any] = {}
        for key, value in schema.items():
            if not isinstance(key, str):
                self.note(path, f"left out the key {key!r}")
            elif key == "$schema" and not _DRAFT.match(str(value)):
                self.note(path, f"left out the unknown $schema {str(value)[:60]!r}")
            elif value is None and key not in _MAY_BE_NULL:
                self.note(path, f"left out {key!r}, which was null")
            else:
                made[key] = self._below(key, value, f"{path}.{key}", level)
        self._type(made, path)
        self._required(made, path)
        self._bounds(made, path)
        self._items(made, path)
        settle(made, path, self.note)
        for key in ("description", "title"):
            if key in made and not isinstance(made[key], str):
                made[key] = str(made[key])[:1000]
                self.note(path, f"made {key} a string")
        return made

    def _below(self, key: str, value: Any, path: str, level: int) -> Any:
        if key in _OF_SCHEMAS:
            return self._properties(value, path, level)
        if key in _SCHEMAS or (key == "items" and isinstance(value, list)):
            return [self._part(each, path, level) for each in value] if isinstance(value, list) else value
        return self._part(value, path, level) if key in _SCHEMA else value

    def _part(self, value: Any, path: str, level: int) -> Any:
        """Return a corrected subschema; a lone word is its type or its description."""
        if isinstance(value, Mapping):
            return self.schema(value, path, level + 1)
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            self.note(path, f"made {value!r} a boolean")
            return value.lower() == "true"
        if isinstance(value, str):
            self.note(path, f"made {value[:40]!r} a schema")
            is_type = value.lower() in _WORDS or _GENERIC.match(value) is not None
            return self.schema({"type" if is_type else "description": value}, path, level + 1)
        return value

    def _properties(self, value: Any, path: str, level: int) -> Any:
        if isinstance(value, list) and all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in value):
            self.note(path, "made the list an object")
            value = {each["name"]: {key: part for key, part in each.items() if key != "name"} for each in value}
        if not isinstance(value, Mapping):
            return value
        return {str(name): self._part(part, f"{path}.{name}", level) for name, part in value.items()}

    def _type(self, made: dict[str, Any], path: str) -> None:
        kinds = made.get("type")
        words = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        if kinds is None or (words and all(isinstance(word, str) and word in JSON_TYPES for word in words)):
            return
        if isinstance(kinds, Mapping):
            # A whole schema stands where its type should be.
            del made["type"]
            for key, value in self.schema(kinds, path, 1).items():
                made.setdefault(key, value)
            self.note(path, "took the schema out of 'type'")
            return
        known, items = _read_types(words)
        del made["type"]
        if known:
            made["type"] = known[0] if len(known) == 1 else known
            if items is not None and "array" in known:
                made.setdefault("items", items)
        self.note(path, f"read the type {str(kinds)[:40]!r} as {made.get('type', 'anything')!r}")

    def _required(self, made: dict[str, Any], path: str) -> None:
        properties = made.get("properties")
        hoisted: list[str] = []
        spared: set[str] = set()
        for name, part in properties.items() if isinstance(properties, Mapping) else ():
            needed = self._said_inside(part) if isinstance(part, dict) else None
            if needed is None:
                continue
            self.note(f"{path}.properties.{name}", "moved 'required' to where it belongs")
            if needed:
                hoisted.append(name)
            else:
                spared.add(name)
        required = made.get("required")
        if isinstance(required, str) and isinstance(properties, Mapping) and required in properties:
            required = [required]
        if isinstance(required, list):
            wanted = list(dict.fromkeys(each for each in [*required, *hoisted] if isinstance(each, str) and each not in spared))
            if wanted != made.get("required"):
                self.note(path, "corrected 'required'")
            made["required"] = wanted
        elif hoisted:
            made["required"] = hoisted

    @staticmethod
    def _said_inside(part: dict[str, Any]) -> bool | None:
        """Take ``required`` or ``optional`` out of a property; return whether it is required, or None when nothing is said."""
        optional = flag(part["optional"]) if "optional" in part else None
        if optional is not None:
            del part["optional"]
        required = part.get("required")
        if not isinstance(required, (bool, str)):
            return None if optional is None else not optional
        del part["required"]
        return flag(required) is True and not optional

    def _bounds(self, made: dict[str, Any], path: str) -> None:
        for key in [key for key in _NUMBERS if key in made]:
            value = made.get(key)
            if isinstance(value, str):
                try:
                    made[key] = msgspec.json.decode(value, type=int | float)
                    self.note(path, f"made {key} a number")
                except DECODE_ERRORS:
                    pass  # left out as a flaw
            elif isinstance(value, bool):
                # The form that JSON Schema used until draft 4.
                del made[key]
                bound = key.replace("exclusive", "").lower()
                if value and key.startswith("exclusive") and bound in made:
                    made[key] = made.pop(bound)
                self.note(path, f"wrote {key} as a bound")

    def _items(self, made: dict[str, Any], path: str) -> None:
        if isinstance(made.get("items"), list) and "$schema" not in made:
            made["prefixItems"] = made.pop("items")
            if "additionalItems" in made:
                made["items"] = made.pop("additionalItems")
            if not made["prefixItems"]:
                del made["prefixItems"]
            self.note(path, "wrote the list of items as prefixItems")


def _read_types(words: list[Any]) -> tuple[list[str], dict[str, Any] | None]:
    """Return the JSON types that words of other languages mean (none for "anything"), and the item schema of the array among them."""
    known: dict[str, None] = {}
    items: dict[str, Any] | None = None
    for each in words:
        for word in _split(str(each)):
            plain = word.strip().lower()
            if plain.endswith("[]"):
                below, _ = _read_types([word.strip()[:-2]])
                known["array"] = None
                items = {"type": below[0]} if len(below) == 1 else {}
                continue
            generic = _GENERIC.match(word.strip())
            if generic is not None and generic[1].lower() in {"optional", "union", "nullable", "literal"}:
                if generic[1].lower() == "literal":
                    return [], None
                below, items = _read_types(_split(generic[2], ","))
                if not below:
                    return [], None
                known |= dict.fromkeys(below)
                if generic[1].lower() != "union":
                    known["null"] = None
                continue
            base = generic[1].lower() if generic is not None else plain
            kind = _WORDS.get(base)
            if kind is None:
                return [], None
            known[kind] = None
            if generic is not None and kind == "array":
                below, _ = _read_types(_split(generic[2], ","))
                items = {"type": below[0] if len(below) == 1 else below} if below else {}
    return list(known), items


def _split(text: str, by: str = "|") -> list[str]:
    """Split a type's text into its parts (``int | None``, ``str or int``, ``string, optional``), but never within brackets."""
    if by == "|":
        text = re.sub(r",\s*(optional|required|default\b.*)\Z", "", text[:200], flags=re.IGNORECASE | re.DOTALL)
        text = re.sub(r"\s+or\s+|/", "|", text)
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[<(") - (char in "]>)")
        if char == by and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


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
    return value if isinstance(value, bool) else _FLAGS.get(value.lower()) if isinstance(value, str) else None


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
    # Each once; 1, 1.0 and true are three.
    read = list({f"{type_name(each)} {each!r}": each for each in (_as_one_of(kinds, value) for value in values)}.values())
    if all(fits(value, kinds) for value in read):
        made["enum"] = read
        note(path, f"made the values of 'enum' fit the type {made['type']!r}")
    elif "object" in kinds or kinds == ["boolean"]:
        # Their values are not told by other values: yes and no may be true and false, or the other way round.
        del made["enum"]
        note(path, f"left out 'enum', whose values are not of the type {made['type']!r}")
    else:
        used = [kind for kind in kinds if any(fits(value, [kind]) for value in read)]
        others = [type_word(value) for value in read if not fits(value, kinds)]
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
        read = value_in(value.strip(), tuple(kinds), {})
        return value if read is UNCHANGED else read
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
        note(path, f"made the default {default[:40]!r} {'one of its values' if isinstance(meant, str) else 'fit the type'}")
