"""Rewrite JSON Schemas for strict mode, in which a provider enforces the schema while its model writes.

Strict mode closes every object and requires every property, so optional properties become nullable; their nulls are
dropped again before arguments are validated (``casting``). A schema that strict mode can't express, such as an object of
any keys, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import msgspec

from toolbus.bus.schema.documents import MOST_PROPERTIES, MOST_TEXT, fits


class Dialect(msgspec.Struct, frozen=True):
    """The keywords that a provider's strict mode understands.

    Attributes:
        assertions: keywords that may stay beside ``type``; other bounds are left out, since arguments are validated again.
        references: whether a schema may refer to its definitions, and so be recursive.
    """

    assertions: frozenset[str]
    references: bool


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}

OPENAI = Dialect(frozenset({"pattern", "format"} | _BOUNDS), references=True)
ANTHROPIC = Dialect(frozenset({"format"}), references=False)

_PROSE = frozenset({"description", "title"})
# Most properties have only these keys, and most schemas are one object of such properties.
_LEAF = frozenset({"type", "description", "title", "default"})
_LEAF_TYPES = ("string", "integer", "number", "boolean")
_NULLABLE_TYPES = {kind: [kind, "null"] for kind in _LEAF_TYPES}
_FLAT = frozenset({"type", "properties", "required", "additionalProperties"})


class _Leaf(msgspec.Struct, frozen=True):
    """The keys of a plain property: whether it has a description, and whether nothing else but its type."""

    described: bool
    bare: bool


_LEAVES = {
    keys: _Leaf("description" in keys, "default" not in keys)
    for size in range(1, 4)
    for keys in permutations(("type", "description", "default"), size)
    if "type" in keys
}
# Keywords that may be left out: they say nothing about the shape, or only narrow it.
_LEFT_OUT = frozenset(
    {
        "$schema", "$id", "$comment", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "minLength", "maxLength",
        "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
        "uniqueItems", "discriminator", "minProperties", "maxProperties", "contentEncoding", "contentMediaType", "contentSchema",
    }
)  # fmt: skip
_SHAPE = frozenset({"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "$ref"})
# Keywords that the top of a tool's schema may not have, since it must be an object.
_CHOICES = frozenset({"anyOf", "oneOf", "$ref", "enum", "const"})
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_MOST_LEVELS = 10
_MOST_PATTERN = 200


class _NotExpressible(Exception):
    """Strict mode can't express this schema."""


def strict(schema: object, dialect: Dialect = OPENAI) -> dict[str, Any] | None:
    """Return the schema of a tool's arguments for strict mode, or None when strict mode can't express it."""
    if not isinstance(schema, dict) or "properties" not in schema:
        # The tool takes arguments of any name.
        return None
    try:
        written = _Writer(dialect).root(schema)
        return written if fits(written) else None
    except (_NotExpressible, RecursionError, TypeError):
        # TypeError: an unhashable value stands where a name should be.
        return None


def flat(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the strict form of a schema of one object with plain values and plain texts, or None for any other schema.

    Most schemas are of this form. They are certainly valid, every dialect can express them, their texts are printable ASCII, and
    this takes a third of the time.
    """
    properties, required = schema.get("properties"), schema.get("required", [])
    if type(properties) is not dict or type(required) is not list or not _FLAT.issuperset(schema) or len(properties) > MOST_PROPERTIES:
        return None
    if schema.get("type") != "object" or schema.get("additionalProperties", False) is not False:
        return None
    made: dict[str, Any] = {}
    try:
        for name, part in properties.items():
            # The keys in their order; a lookup takes less time than looking at each.
            leaf = _LEAVES[tuple(part)]
            kinds = _NULLABLE_TYPES[part["type"]]
            if leaf.described and not ((text := part["description"]).isascii() and text.isprintable()):
                return None
            if name in required:
                made[name] = part if leaf.bare else _without_default(part)
            elif leaf.described:
                made[name] = {"type": kinds, "description": text}
            else:
                made[name] = {"type": kinds}
        if len("".join(made)) > MOST_TEXT:
            return None
    except (KeyError, TypeError, AttributeError):
        return None
    if len(required) > 1 and len(set(map(str, required))) < len(required):
        # A schema that requires a name twice is invalid.
        return None
    for name in required:
        if type(name) is not str or name not in made:
            return None
    return {"type": "object", "properties": made, "required": list(made), "additionalProperties": False}


class _Writer:
    """Rewrites one schema."""

    __slots__ = ("_dialect", "_named")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._named: frozenset[str] = frozenset()

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the whole schema: an object, with definitions."""
        if schema.get("type", "object") != "object" or not schema.keys().isdisjoint(_CHOICES):
            raise _NotExpressible
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
                raise _NotExpressible
            written[key] = {name: self._node(part, 1) for name, part in parts.items()}
        return written

    def _node(self, schema: object, level: int) -> dict[str, Any]:
        if not isinstance(schema, dict) or level > _MOST_LEVELS:
            raise _NotExpressible
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
                raise _NotExpressible
            self._object(schema, written, level)
        if "array" in kinds:
            written["items"] = self._node(schema.get("items"), level + 1)
        return written

    def _kept(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords that may stay beside the shape: texts, and the bounds that the dialect understands."""
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
            raise _NotExpressible
        for name in required:
            if name not in properties:
                raise _NotExpressible
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
            raise _NotExpressible
        if not local or not self._dialect.references or not schema.keys() <= _PROSE | {"$ref", "default"}:
            raise _NotExpressible
        return {"$ref": target}

    def _choice(self, schema: dict[str, Any], written: dict[str, Any], level: int) -> dict[str, Any]:
        if not schema.keys().isdisjoint(_SHAPE - {"anyOf", "oneOf"}) or ("anyOf" in schema and "oneOf" in schema):
            raise _NotExpressible
        branches = schema.get("anyOf", schema.get("oneOf"))
        if not isinstance(branches, list) or not branches:
            raise _NotExpressible
        # Strict mode can't make branches exclusive; oneOf is still enforced when the arguments are validated.
        written["anyOf"] = [self._node(branch, level) for branch in branches]
        return written

    def _enumeration(self, schema: dict[str, Any]) -> list[Any]:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list) or not values or any(isinstance(value, (dict, list)) for value in values):
            raise _NotExpressible
        return list(values)

    @staticmethod
    def _leave_out(key: object) -> None:
        if key not in _LEFT_OUT and not (isinstance(key, str) and key.startswith("x-")):
            raise _NotExpressible


def _understood(key: str, value: object) -> bool:
    if key == "format":
        return value in _FORMATS if isinstance(value, str) else False
    if key == "pattern":
        # Look-around is not supported, and an unreadable pattern would make the provider refuse the whole list of tools.
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
        raise _NotExpressible
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _NotExpressible
    return list(kinds)


def _implied(schema: Mapping[str, Any]) -> list[str] | None:
    if "properties" in schema:
        return ["object"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return ["string"]
    return None


def _without_default(schema: dict[str, Any]) -> dict[str, Any]:
    # Shared instead of copied: with many schemas, most of the time goes into memory for new dicts.
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
