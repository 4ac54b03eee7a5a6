"""Make schemas portable: a plain object at the top, and nothing that makes a provider refuse the whole list of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

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
_CHOICES = ("anyOf", "oneOf")
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
        from toolbus.bus.schema.validate import Validator  # noqa: PLC0415 - it loads the compiler of schemas, which few need

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
    properties, required = _Gatherer(schema).gathered(schema, 0)
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


class _Gatherer:
    """Collects the properties of objects that match a schema, in a bounded number of steps."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_PARTS

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
            together.append(_referred(schema["$ref"], self._root))
        together += _branches(schema.get("allOf", []))
        for part in together:
            more, also = self.gathered(part, hops + 1)
            _merge(properties, more)
            required += also
        for keyword in _CHOICES:
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


def _referred(reference: object, root: Mapping[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise _misfit()
    found: object = root
    for step in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            raise _misfit()
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _misfit() -> DescriptorError:
    return DescriptorError("the schema does not describe an object that a model could fill in", path="$.parameters")
