"""JSON Schemas said so that a provider can enforce them while its model writes: "strict mode".

There every object is closed and every property required, so what was optional becomes nullable; the nulls are dropped again
before arguments are validated (``casting``). What strict mode has no words for, such as an object of any keys, is not forced
into it: the schema then stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec


class Dialect(msgspec.Struct, frozen=True):
    """What a provider's strict mode understands.

    Attributes:
        assertions: keywords that may stay beside ``type``; others that only narrow are left out, since arguments are validated again.
        references: whether a schema may refer to its definitions, and so be recursive.
    """

    assertions: frozenset[str]
    references: bool


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}

OPENAI = Dialect(frozenset({"pattern", "format"} | _BOUNDS), references=True)
ANTHROPIC = Dialect(frozenset({"format"}), references=False)

_PROSE = frozenset({"description", "title"})
# Most properties are no more than this, and most schemas no more than an object of those.
_LEAF = frozenset({"type", "description", "title", "default"})
_LEAF_TYPES = ("string", "integer", "number", "boolean")
_NULLABLE_TYPES = {kind: [kind, "null"] for kind in _LEAF_TYPES}
_FLAT = frozenset({"type", "properties", "required", "additionalProperties"})
# What can be left out: it says nothing about the shape, or only narrows it.
_LEFT_OUT = frozenset(
    {
        "$schema", "$id", "$comment", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "minLength", "maxLength",
        "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
        "uniqueItems", "minProperties", "maxProperties", "contentEncoding", "contentMediaType", "contentSchema",
    }
)  # fmt: skip
_SHAPE = frozenset({"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "$ref"})
# What the top of a tool's schema can't be, beside an object.
_CHOICES = frozenset({"anyOf", "oneOf", "$ref", "enum", "const"})
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_MOST_LEVELS = 10
_MOST_PROPERTIES = 5000
_MOST_VALUES = 1000
_MOST_PATTERN = 200


class _Unsayable(Exception):
    """Strict mode has no words for this schema."""


def strict(schema: object, dialect: Dialect = OPENAI) -> dict[str, Any] | None:
    """The schema of a tool's arguments for strict mode, or None when that has no words for it."""
    if not isinstance(schema, dict) or "properties" not in schema:
        # Arguments of any name.
        return None
    try:
        return _Writer(dialect).root(schema)
    except (_Unsayable, RecursionError, TypeError):
        # TypeError: something that can be no key stands where a name should.
        return None


def flat(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The strict form of an object of plain values, which most schemas are, or None for any other schema.

    One of these is certainly possible, too, and all dialects have words for it. It takes a third of the time of the long way.
    """
    properties, required = schema.get("properties"), schema.get("required", [])
    if type(properties) is not dict or type(required) is not list or not _FLAT.issuperset(schema) or len(properties) > _MOST_PROPERTIES:
        return None
    if schema.get("type") != "object" or schema.get("additionalProperties", False) is not False:
        return None
    made: dict[str, Any] = {}
    for name, part in properties.items():
        if type(part) is not dict or not _LEAF.issuperset(part) or (kind := part.get("type")) not in _LEAF_TYPES:
            return None
        if type(part.get("description", "")) is not str or type(part.get("title", "")) is not str:
            return None
        if name in required:
            made[name] = _without_default(part)
            continue
        made[name] = copy = part.copy()
        copy["type"] = _NULLABLE_TYPES[kind]
        if "default" in copy:
            del copy["default"]
    for name in required:
        if type(name) is not str or name not in made:
            return None
    if len(set(required)) < len(required):
        # A schema that requires a name twice is impossible.
        return None
    return {"type": "object", "properties": made, "required": list(made), "additionalProperties": False}


class _Writer:
    """Writes one schema anew."""

    __slots__ = ("_dialect", "_named", "_properties", "_values")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._named: frozenset[str] = frozenset()
        self._properties = 0
        self._values = 0

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The whole schema: an object, with definitions."""
        if schema.get("type", "object") != "object" or not schema.keys().isdisjoint(_CHOICES):
            raise _Unsayable
        written: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for key, value in schema.items():
            if key in {"$defs", "definitions"}:
                definitions[key] = value
                self._named |= value.keys() if isinstance(value, dict) else frozenset()
            elif key in _PROSE and isinstance(value, str):
                written[key] = value
            elif key not in _SHAPE:
                self._leave_out(key)
        written |= {"type": "object"}
        self._object(schema, written, 0)
        for key, parts in definitions.items():
            if not isinstance(parts, dict) or not self._dialect.references:
                raise _Unsayable
            written[key] = {name: self._node(part, 1) for name, part in parts.items()}
        return written

    def _node(self, schema: object, level: int) -> dict[str, Any]:
        if not isinstance(schema, dict) or level > _MOST_LEVELS:
            raise _Unsayable
        if _LEAF.issuperset(schema) and schema.get("type") in _LEAF_TYPES:
            return _without_default(schema)
        written = self._kept(schema)
        if "$ref" in schema:
            return self._reference(schema)
        if "anyOf" in schema or "oneOf" in schema:
            return self._choice(schema, written, level)
        kinds = _kinds(schema)
        written["type"] = kinds[0] if len(kinds) == 1 else kinds
        if "enum" in schema or "const" in schema:
            written["enum"] = self._enumeration(schema)
        if "object" in kinds:
            if not schema.get("properties"):
                raise _Unsayable
            self._object(schema, written, level)
        if "array" in kinds:
            written["items"] = self._node(schema.get("items"), level + 1)
        return written

    def _kept(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What may stay beside the shape: words, and the bounds that are understood."""
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _SHAPE:
                continue
            if (key in _PROSE and isinstance(value, str)) or (key in self._dialect.assertions and _understood(key, value)):
                kept[key] = value
            elif key not in _PROSE:
                self._leave_out(key)
        return kept

    def _object(self, schema: dict[str, Any], written: dict[str, Any], level: int) -> None:
        properties, required = schema["properties"], schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list) or schema.get("additionalProperties", False) is not False:
            raise _Unsayable
        self._properties += len(properties)
        if self._properties > _MOST_PROPERTIES:
            raise _Unsayable
        for name in required:
            if name not in properties:
                raise _Unsayable
        below = level + 1
        made = {
            name: self._node(part, below) if name in required else _nullable(self._node(part, below)) for name, part in properties.items()
        }
        written["properties"] = made
        written["required"] = list(made)
        written["additionalProperties"] = False

    def _reference(self, schema: dict[str, Any]) -> dict[str, Any]:
        target = schema["$ref"]
        local = isinstance(target, str) and (target == "#" or target.startswith(("#/$defs/", "#/definitions/")))
        _, _, name = str(target)[2:].partition("/")
        if local and name and name not in self._named:
            raise _Unsayable
        if not local or not self._dialect.references or not schema.keys() <= _PROSE | {"$ref"}:
            raise _Unsayable
        return {"$ref": target}

    def _choice(self, schema: dict[str, Any], written: dict[str, Any], level: int) -> dict[str, Any]:
        if not schema.keys().isdisjoint(_SHAPE - {"anyOf", "oneOf"}) or ("anyOf" in schema and "oneOf" in schema):
            raise _Unsayable
        branches = schema.get("anyOf", schema.get("oneOf"))
        if not isinstance(branches, list) or not branches:
            raise _Unsayable
        # Branches are not exclusive here; whoever insists on that does so when arguments are validated.
        written["anyOf"] = [self._node(branch, level) for branch in branches]
        return written

    def _enumeration(self, schema: dict[str, Any]) -> list[Any]:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list) or not values or any(isinstance(value, (dict, list)) for value in values):
            raise _Unsayable
        self._values += len(values)
        if self._values > _MOST_VALUES:
            raise _Unsayable
        return list(values)

    @staticmethod
    def _leave_out(key: object) -> None:
        if key not in _LEFT_OUT and not (isinstance(key, str) and key.startswith("x-")):
            raise _Unsayable


def _understood(key: str, value: object) -> bool:
    if key == "format":
        return value in _FORMATS if isinstance(value, str) else False
    if key == "pattern":
        # Look-around is not understood, and what can't be read would break the whole list.
        return isinstance(value, str) and len(value) <= _MOST_PATTERN and "(?" not in value and "\\" not in value and _compiles(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if key in {"minItems", "maxItems"}:
        return isinstance(value, int) and value >= 0
    return key != "multipleOf" or value > 0


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _kinds(schema: dict[str, Any]) -> list[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    elif kinds is None:
        kinds = _implied(schema)
    if not isinstance(kinds, list) or not kinds:
        raise _Unsayable
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _Unsayable
    return list(kinds)


def _implied(schema: Mapping[str, Any]) -> list[str] | None:
    if "properties" in schema:
        return ["object"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return ["string"]
    return None


def _without_default(schema: dict[str, Any]) -> dict[str, Any]:
    # Shared, not copied: most of the time of many schemas goes into the memory for new dicts.
    if "default" not in schema:
        return schema
    copy = schema.copy()
    del copy["default"]
    return copy


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return {"anyOf": [node, {"type": "null"}]}
    if "anyOf" in node:
        if any(branch.get("type") == "null" for branch in node["anyOf"]):
            return node
        return {**node, "anyOf": [*node["anyOf"], {"type": "null"}]}
    kinds = node["type"]
    if kinds == "null" or "null" in kinds:
        return node
    nullable = {**node, "type": [kinds, "null"] if isinstance(kinds, str) else [*kinds, "null"]}
    if "enum" in node and None not in node["enum"]:
        nullable["enum"] = [*node["enum"], None]
    return nullable
