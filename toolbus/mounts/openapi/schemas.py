"""Schemas of an OpenAPI document as JSON Schema: references become definitions of their own, so that cycles have an end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

# Parts of the schemas of one operation.
_MOST_PARTS = 20_000
_MOST_REFERENCES = 20
_MOST_DIGITS = 10
_LEFT_OUT = frozenset({"xml", "externalDocs", "discriminator", "example", "examples", "nullable", "readOnly", "writeOnly", "deprecated"})
# Keywords whose values are schemas, by their form.
_ONE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties"})
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


class Unusable(Exception):
    """A part of the document can't be served; the message says why."""


class Document:
    """Looks up references within a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.root = document

    def resolved(self, part: Any) -> dict[str, Any]:
        """Return an object, or the one that it refers to.

        Raises:
            Unusable: it is none, or refers to nothing, to another document, or to itself.
        """
        for _ in range(_MOST_REFERENCES):
            if not isinstance(part, dict):
                raise Unusable("it has a part that is no object")
            reference = part.get("$ref")
            if reference is None:
                return part
            part = self.target(reference)
        raise Unusable("its references refer to each other")

    def target(self, reference: object) -> Any:
        """Return the target of a reference.

        Raises:
            Unusable: there is none in this document.
        """
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise Unusable("it refers to another document, which is not read")
        found: Any = self.root
        for step in unquote(reference[2:]).split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and len(key) < _MOST_DIGITS and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise Unusable(f"it refers to {reference[:100]!r}, which is not there")
        return found


class Converter:
    """Converts the schemas of one operation.

    Attributes:
        definitions: schemas that they refer to, for ``$defs``.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._parts = 0
        self.definitions: dict[str, Any] = {}

    def convert(self, schema: Any) -> Any:
        """Return a schema of the document as JSON Schema.

        Raises:
            Unusable: it is none, or too large.
        """
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise Unusable(f"its schemas have more than {_MOST_PARTS:,} parts")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Unusable("it has a schema that is none")
        if "$ref" in schema:
            about = {key: schema[key] for key in ("description",) if isinstance(schema.get(key), str)}
            return {"$ref": f"#/$defs/{self._name(schema['$ref'])}", **about}
        made = {key: self._value(key, value) for key, value in schema.items() if key not in _LEFT_OUT and not key.startswith("x-")}
        return _modern(self._without_read_only(schema, made), nullable=schema.get("nullable") is True)

    def _value(self, key: str, value: Any) -> Any:
        if key in _ONE and isinstance(value, (dict, bool)):
            return self.convert(value)
        if key in _MANY and isinstance(value, list):
            return [self.convert(each) for each in value]
        if key in _NAMED and isinstance(value, dict):
            return {str(name): self.convert(each) for name, each in value.items()}
        return value

    def _name(self, reference: object) -> str:
        """Return the definition's name of a reference."""
        key = str(reference)
        if key not in self._names:
            target = self._document.target(reference)
            name = re.sub(r"[^A-Za-z0-9_]", "_", key.rpartition("/")[2])[:50] or "schema"
            while name in self.definitions:
                name += "_"
            # Known before it is converted, since it may refer to itself.
            self._names[key] = name
            self.definitions[name] = True
            self.definitions[name] = self.convert(target)
        return self._names[key]

    def _without_read_only(self, schema: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
        """Leave out properties that only the server sets."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return made
        hidden = {name for name, each in properties.items() if isinstance(each, dict) and each.get("readOnly") is True}
        if not hidden:
            return made
        made["properties"] = {name: each for name, each in made["properties"].items() if name not in hidden}
        if isinstance(made.get("required"), list):
            made["required"] = [name for name in made["required"] if not isinstance(name, str) or name not in hidden]
        return made


def _modern(schema: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    """Return a schema of OpenAPI 3.0 as that of 3.1."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)
    if not nullable:
        return schema
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        return schema
    return {"anyOf": [schema, {"type": "null"}]}
