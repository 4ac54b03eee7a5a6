"""``Operation``: one operation of an API: its tool's name, the schema of its arguments, and where each of them goes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from toolbus.edges.mounts.options import words_of

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


Place = Literal["path", "query", "header"]

EFFECTS: Mapping[str, str] = {"get": "read", "put": "idempotent", "delete": "idempotent", "post": "once", "patch": "once"}
"""The effect of a tool by its method; operations of other methods are not served."""

_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\b", re.IGNORECASE)
_FORM = "application/x-www-form-urlencoded"
# They are the transport's, or secrets, and never an argument's.
_NOT_ARGUMENTS = frozenset(
    {"accept", "authorization", "connection", "content-length", "content-type", "cookie", "host", "transfer-encoding"}
)
# The first is the usual one.
_STYLES = {"path": ("simple",), "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"), "header": ("simple",)}
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_MOST_ABOUT = 8_000


class Parameter(msgspec.Struct, frozen=True):
    """The place of an argument.

    Attributes:
        argument: its name in the tool's schema; ``name`` in the API.
        style, explode: how lists and objects are written.
        as_json: the value is written as JSON.
    """

    argument: str
    name: str
    place: Place
    style: str
    explode: bool
    as_json: bool = False


class Body(msgspec.Struct, frozen=True):
    """The form of a body.

    Attributes:
        media_type: of the request.
        whole: the argument that is the whole body; empty when it is an object of several arguments.
        fields: the body's keys by argument.
    """

    media_type: str
    whole: str = ""
    fields: Mapping[str, str] = {}


class Operation(msgspec.Struct, frozen=True):
    """One operation.

    Attributes:
        name, description: of its tool; ``schema`` of its arguments.
        servers: the addresses that its own description gives, which come before the document's.
    """

    name: str
    description: str
    method: str
    path: str
    schema: dict[str, Any]
    parameters: tuple[Parameter, ...]
    body: Body | None
    servers: tuple[Any, ...]

    @property
    def effect(self) -> str:
        """Return the effect of a second execution."""
        return EFFECTS[self.method]


class Flawed(msgspec.Struct, frozen=True):
    """An operation that is not served, and why."""

    name: str
    reason: str


def operations(document: Document, given: Collection[str] = ()) -> Iterator[Operation | Flawed]:
    """Yield the operations of a document.

    Args:
        document: the whole.
        given: names of headers and of parameters in the query that the operator fills in, which are no arguments.
    """
    taken: set[str] = set()
    hidden = {name.lower() for name in given}
    for path, item in document.root["paths"].items():
        try:
            found = document.resolved(item)
        except Unusable as error:
            yield Flawed(str(path), str(error))
            continue
        for method in EFFECTS:
            if method in found:
                fallback = f"{method}_{words_of(str(path)) or 'root'}"
                try:
                    made = _Reader(document, hidden).read(str(path), method, found, taken)
                except (Unusable, RecursionError) as error:
                    yield Flawed(fallback, str(error) if isinstance(error, Unusable) else "it is nested too deeply")
                    continue
                taken.add(made.name)
                yield made


class _Reader:
    """Reads one operation."""

    def __init__(self, document: Document, hidden: Collection[str]) -> None:
        self._document = document
        self._hidden = hidden
        self._converter = Converter(document)
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._parameters: list[Parameter] = []

    def read(self, path: str, method: str, item: dict[str, Any], taken: Collection[str]) -> Operation:
        if not path.startswith("/") or any(ord(character) < 33 for character in path) or "?" in path or "#" in path:
            raise Unusable(f"its path {path[:60]!r} is none")
        operation = self._document.resolved(item[method])
        self._read_parameters([*_listed(item.get("parameters")), *_listed(operation.get("parameters"))])
        named = {each.name for each in self._parameters if each.place == "path"}
        missing = set(re.findall(r"\{([^{}]*)\}", path)) - named
        if missing:
            raise Unusable(f"its path needs {min(missing)!r}, which is no parameter")
        body = self._read_body(operation.get("requestBody"))
        schema: dict[str, Any] = {"type": "object", "properties": self._properties}
        if self._required:
            schema["required"] = self._required
        if self._converter.definitions:
            schema["$defs"] = self._converter.definitions
        servers = (*_listed(operation.get("servers")), *_listed(item.get("servers")))
        name = _name(operation, method, path, taken)
        return Operation(name, _about(operation, method, path), method, path, schema, tuple(self._parameters), body, servers)

    def _read_parameters(self, listed: list[Any]) -> None:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for each in listed:
            parameter = self._document.resolved(each)
            name, place = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not name or not isinstance(place, str):
                raise Unusable("it has a parameter without a name or place")
            # Those of the operation replace those of its path.
            found[name, place] = parameter
        for (name, place), parameter in found.items():
            self._add_parameter(name, place, parameter)

    def _add_parameter(self, name: str, place: str, parameter: dict[str, Any]) -> None:
        required = place == "path" or parameter.get("required") is True
        if (place == "header" and name.lower() in _NOT_ARGUMENTS) or (place in {"header", "query"} and name.lower() in self._hidden):
            return
        if place == "cookie":
            if required:
                raise Unusable(f"it needs the cookie {name[:60]!r}")
            return
        if place not in {"path", "query", "header"} or (place == "header" and not _HEADER.match(name)):
            raise Unusable(f"its parameter {name[:60]!r} has no place where it can go")
        schema, as_json = self._schema_of(parameter)
        if isinstance(parameter.get("description"), str) and isinstance(schema, dict):
            schema = {"description": parameter["description"][:_MOST_ABOUT], **schema}
        styles = _STYLES[place]
        style = parameter.get("style") or styles[0]
        if not as_json and style not in styles:
            raise Unusable(f"its parameter {name[:60]!r} is of the style {str(style)[:60]!r}, which is not supported")
        explode = parameter.get("explode")
        argument = self._argument(name, place, schema, required=required)
        exploded = explode if isinstance(explode, bool) else style == "form"
        self._parameters.append(Parameter(argument, name, place, str(style), exploded, as_json))  # type: ignore[arg-type] # one of them

    def _schema_of(self, parameter: dict[str, Any]) -> tuple[Any, bool]:
        content = parameter.get("content")
        if isinstance(content, dict):
            kind = next((kind for kind in content if _JSON.match(str(kind))), None)
            if kind is None:
                raise Unusable("it has a parameter of a media type that is not JSON")
            return self._converter.convert(self._document.resolved(content[kind]).get("schema", True)), True
        return self._converter.convert(parameter.get("schema", {"type": "string"})), False

    def _argument(self, name: str, place: str, schema: Any, *, required: bool) -> str:
        """Add a property under a name that is free, and return that name."""
        plain = words_of(name) if not re.fullmatch(r"[A-Za-z0-9_.\-\[\]$@]{1,100}", name) else name
        argument = plain or place
        while argument in self._properties:
            argument = f"{argument}_{place}"
        self._properties[argument] = schema
        if required:
            self._required.append(argument)
        return argument

    def _read_body(self, described: Any) -> Body | None:
        if described is None:
            return None
        body = self._document.resolved(described)
        content = body.get("content")
        if not isinstance(content, dict) or not content:
            return None
        kinds = [str(kind) for kind in content]
        kind = next((kind for kind in kinds if _JSON.match(kind)), None) or next(
            (kind for kind in kinds if kind.lower().startswith((_FORM, "text/plain")) or kind in {"*/*", "application/*"}), None
        )
        required = body.get("required") is True
        if kind is None:
            if not required:
                return None
            raise Unusable(f"it needs a body of {kinds[0][:60]!r}, which is not supported")
        media_type = "application/json" if "*" in kind else kind.partition(";")[0].strip().lower()
        media = self._document.resolved(content[kind])
        if media_type == "text/plain":
            return Body(media_type, self._argument("body", "body", {"type": "string"}, required=required))
        source = media.get("schema", True)
        if media_type == _FORM and media.get("encoding"):
            raise Unusable("its form has fields with an encoding of their own, which is not supported")
        fields = self._fields(source, required=required)
        if fields is not None:
            return Body(media_type, fields=fields)
        if media_type == _FORM:
            raise Unusable("its form has fields that are not described")
        return Body(media_type, self._argument("body", "body", self._converter.convert(source), required=required))

    def _fields(self, source: Any, *, required: bool) -> dict[str, str] | None:
        """Add each property of a body that is a plain object as an argument; None when it is none, so that the body is one argument."""
        if not isinstance(source, dict):
            return None
        plain = self._document.resolved(source)
        properties = plain.get("properties")
        if (
            plain.get("type", "object") != "object"
            or not isinstance(properties, dict)
            or not properties
            or plain.get("additionalProperties")
        ):
            return None
        if any(key in plain for key in ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties", "dependentRequired")):
            return None
        listed = _listed(plain.get("required"))
        # An optional body is left out as a whole, which its fields can't say.
        if plain.get("nullable") or (listed and not required):
            return None
        needed = {name for name in listed if isinstance(name, str)}
        fields: dict[str, str] = {}
        for name, each in properties.items():
            if isinstance(each, dict) and each.get("readOnly") is True:
                continue
            fields[self._argument(str(name), "body", self._converter.convert(each), required=name in needed)] = str(name)
        return fields


def _name(operation: dict[str, Any], method: str, path: str, taken: Collection[str]) -> str:
    own = operation.get("operationId")
    name = words_of(own) if isinstance(own, str) else ""
    if name and name not in taken and len(name) <= 100:
        return name
    return f"{method}_{words_of(path) or 'root'}"[:100]


def _about(operation: dict[str, Any], method: str, path: str) -> str:
    texts = [text.strip() for key in ("summary", "description") if isinstance(text := operation.get(key), str) and text.strip()]
    if len(texts) == 2 and texts[1].startswith(texts[0]):
        texts = texts[1:]
    if operation.get("deprecated") is True:
        texts.append("Deprecated.")
    return "\n\n".join(texts)[:_MOST_ABOUT] or f"{method.upper()} {path}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
