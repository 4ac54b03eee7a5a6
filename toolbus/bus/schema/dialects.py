"""Rewrite JSON Schemas for models: portable, which every provider accepts, and strict, which a provider enforces while its model writes.

A portable schema has a plain object at its top, and nothing that makes a provider refuse the whole list of tools. Strict mode closes
every object and requires every property, so optional properties become nullable; their nulls are dropped again before arguments are
validated (``casting``). A schema that strict mode can't express, such as an object of any keys, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Annotated, Any, Literal

import msgspec

from toolbus.bus.schema.work import JSON_TYPES, at_pointer
from toolbus.bus.values.results import DescriptorError

_Type = Literal["string", "number", "integer", "boolean", "object", "array", "null"]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Simple(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The keywords of a schema of types and bounds only; other keywords make a schema not simple."""

    type: _Type | Annotated[list[_Type], msgspec.Meta(min_length=1)] = "object"
    description: str = ""
    title: str = ""
    format: str = ""
    properties: dict[str, _Simple | bool] = {}
    required: list[str] = []
    additionalProperties: _Simple | bool = True  # noqa: N815 - keywords of JSON Schema, here and below
    items: _Simple | bool = True
    enum: list[Any] = []
    default: Any = None
    const: Any = None
    examples: list[Any] = []
    anyOf: Annotated[list[_Simple | bool], msgspec.Meta(min_length=1)] = []  # noqa: N815
    oneOf: Annotated[list[_Simple | bool], msgspec.Meta(min_length=1)] = []  # noqa: N815
    minimum: float = 0
    maximum: float = 0
    minLength: _Size = 0  # noqa: N815
    maxLength: _Size = 0  # noqa: N815
    minItems: _Size = 0  # noqa: N815
    maxItems: _Size = 0  # noqa: N815
    uniqueItems: bool = False  # noqa: N815

    def __post_init__(self) -> None:
        types = self.type if isinstance(self.type, list) else ()
        if len(set(self.required)) < len(self.required) or len(set(types)) < len(types):
            raise ValueError("a name stands twice")


def is_simple(schema: object) -> bool:
    """Return whether a schema is certainly valid; costs a tenth of compiling it."""
    try:
        msgspec.convert(schema, _Simple)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


# Keywords that no provider accepts at the top of a tool's schema.
_BRANCHING = ("anyOf", "oneOf")
_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const", "$ref", "$schema")
_MOST_BRANCHES = 64
_MOST_HOPS = 8
# Most parts visited, because references can multiply a few parts.
_MOST_PARTS = 1_000


def check_possible(schema: object) -> None:
    """Check that a schema is valid.

    Raises:
        DescriptorError: the schema is invalid; the message gives the reason.
    """
    if not is_simple(schema):
        from toolbus.bus.schema.arguments import Validator  # noqa: PLC0415 - most schemas are simple, and need no check

        Validator(schema, path="$.parameters")  # type: ignore[arg-type] # it refuses everything but mappings


def plain_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with ``type``, ``properties`` and no choices at its top; a schema like that is returned as it is.

    The result accepts at least everything that the given schema accepts.

    Choices between objects become one object with the properties of all. Which of them belong together is still
    validated when the tool is called.

    Raises:
        DescriptorError: the schema does not describe an object.
    """
    if "properties" in schema and schema.get("type") == "object" and schema.keys().isdisjoint(_NOT_AT_TOP):
        return schema
    properties, required = _Gatherer(schema, _MOST_PARTS).gathered(schema, 0)
    written = {key: value for key, value in schema.items() if key not in _NOT_AT_TOP}
    written["type"] = "object"
    written["properties"] = properties
    if required:
        written["required"] = required
    if properties.keys() > schema.get("properties", {}).keys():
        # A closed branch or a closed top would refuse the properties of other branches.
        written.pop("additionalProperties", None)
        written.pop("unevaluatedProperties", None)
    return written


class _Gatherer(msgspec.Struct, eq=False):
    """Collects the properties of objects that match a schema, in a bounded number of steps."""

    _root: Mapping[str, Any]
    _left: int

    def gathered(self, schema: object, hops: int) -> tuple[dict[str, Any], list[str]]:
        """Return all properties that an object may have by this schema, and the names of those that it must have."""
        self._left -= 1
        if schema is True:
            return {}, []
        if not isinstance(schema, Mapping) or hops > _MOST_HOPS or self._left < 0:
            raise _misfit()
        if schema.get("type", "object") != "object" and "object" not in schema["type"]:
            raise _misfit()
        own, needed = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(own, Mapping) or not isinstance(needed, (list, tuple)):
            raise _misfit()
        properties, required = dict(own), list(needed)
        together: list[object] = []
        if "$ref" in schema:
            reference = schema["$ref"]
            together.append(at_pointer(self._root, reference[1:]) if isinstance(reference, str) and reference[:1] == "#" else None)
        together += _branches(schema.get("allOf", []))
        for part in together:
            more, also = self.gathered(part, hops + 1)
            _merge(properties, more)
            required += also
        for keyword in _BRANCHING:
            if keyword in schema:
                choices = [self.gathered(part, hops + 1) for part in _branches(schema[keyword])]
                for more, _ in choices:
                    _merge(properties, more)
                required += [name for name in choices[0][1] if all(name in also for _, also in choices)] if choices else []
        return properties, [name for name in dict.fromkeys(required) if isinstance(name, str)]


def _merge(properties: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, part in more.items():
        known = properties.get(name)
        if known is None:
            properties[name] = part
        elif known != part:
            properties[name] = {"anyOf": [*_alternatives(known), part]}


def _alternatives(part: Any) -> list[Any]:
    return part["anyOf"] if isinstance(part, Mapping) and part.keys() == {"anyOf"} else [part]


def _branches(value: object) -> list[object]:
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_BRANCHES:
        raise _misfit()
    return list(value)


def _misfit() -> DescriptorError:
    return DescriptorError("the schema does not describe an object that a model could fill in", path="$.parameters")


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
    for part in _parts(schema):
        text += sum(len(name) for key in _NAMED for name in part.get(key, {}))
        properties += len(part.get("properties", {}))
        enumerated = part.get("enum", ())
        size = sum(len(str(value)) for value in enumerated)
        if len(enumerated) > _MANY_VALUES and size > _MOST_OF_MANY:
            return False
        values += len(enumerated)
        text += size
    return properties <= MOST_PROPERTIES and values <= _MOST_VALUES and text <= MOST_TEXT


def unions(schema: Mapping[str, Any]) -> int:
    """Return how many parts of a strict schema are of several types; a property that may be left out is one, since it may be null."""
    return sum(isinstance(part.get("type"), list) or "anyOf" in part for part in _parts(schema))


_NAMED = ("properties", "$defs", "definitions")


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a strict schema and every one within it."""
    left = [schema]
    while left:
        part = left.pop()
        yield part
        left += [*(each for key in _NAMED for each in part.get(key, {}).values()), *part.get("anyOf", ())]
        if "items" in part:
            left.append(part["items"])


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


# By the keys of a plain property: whether it has a description, and whether it has no default.
_LEAVES = {
    keys: ("description" in keys, "default" not in keys)
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
            described, bare = _LEAVES[tuple(part)]
            kinds = _NULLABLE_TYPES[part["type"]]
            if described and not ((text := part["description"]).isascii() and text.isprintable()):
                return None
            if name in required:
                made[name] = part if bare else _without_default(part)
            elif described:
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


class _Writer(msgspec.Struct, eq=False):
    """Rewrites one schema."""

    _dialect: Dialect
    _named: frozenset[str] = frozenset()

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
        if any(name not in properties for name in required):
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
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) and kind in JSON_TYPES for kind in kinds):
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
