"""Describe services and tools: their fields, parsing and checks.

A service descriptor names config params. A tool descriptor names its service and holds the values of those params inline.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.canonical import own_digest
from toolbus.bus.values.naming import SERVICE_ID, TOOL_NAME, check_names, did_you_mean
from toolbus.bus.values.results import DescriptorError

Effect = Literal["", "read", "idempotent", "once"]
EFFECTS: tuple[str, ...] = get_args(Effect)


def effect_flaw(effect: object) -> str:
    """Return what is wrong with an effect and list the valid ones; return "" when it is valid."""
    if isinstance(effect, str) and effect in EFFECTS:
        return ""
    words = [word for word in EFFECTS if word]
    near = difflib.get_close_matches(effect.lower(), words, n=1) if isinstance(effect, str) else []
    return f"there is no effect {effect!r} (choose one of {', '.join(map(repr, words))}, or leave it out){did_you_mean(near)}"


_KEYS = ("group", "state", "applicable-states")


def filters_of(tool: str, document: Mapping[str, Any], params: Collection[str]) -> dict[str, Any]:
    """Return the filters in a tool's document by their keys: the ``group`` and the states of TrustGraph.

    Args:
        tool: the tool's name, for messages.
        document: the tool's document.
        params: config params of its service; a param that is named like a filter stays a param.

    Raises:
        DescriptorError: a filter has another type, or both ``group`` and ``groups`` are there.
    """
    found = {key: document[key] for key in _KEYS if key in document and key not in params}
    if "group" in found and "groups" in document:
        raise DescriptorError(f"tool {tool!r} has both 'group' and 'groups'", path="$.group")
    if not isinstance(found.get("state", ""), str):
        raise DescriptorError(f"the key 'state' of tool {tool!r} must be a string", path="$.state")
    for key in ("group", "applicable-states"):
        value = found.get(key, [])
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise DescriptorError(f"the key {key!r} of tool {tool!r} must be a list of strings", path=f"$.{key}")
    return found


T = TypeVar("T")

TOOL_SERVICE = "tool-service"

# Config values stand inline beside these keys, so no config param may have one of these names.
RESERVED_KEYS = frozenset(
    {
        "type", "name", "description", "service", "arguments", "parameters", "groups", "category",
        "timeout", "effect", "output_limit", "confirm", "external", "tenants", "x-toolbus",
    }
)  # fmt: skip

_OPTIONAL_KEYS = ("groups", "category", "timeout", "effect", "output_limit", "confirm", "external", "tenants")

# Queue names come from other systems (`non-persistent://tg/request/joke`). A queue name is the last part of its key, so it can't collide.
_QUEUE = re.compile(r"[^\s\x00-\x1f{}]{1,256}\Z")

# TrustGraph shows these types to the model without enforcing them; any other word means any type.
TYPE_WORDS = {
    "string": "string", "str": "string", "text": "string",
    "number": "number", "float": "number",
    "integer": "integer", "int": "integer",
    "boolean": "boolean", "bool": "boolean",
    "object": "object", "dict": "object",
    "array": "array", "list": "array",
}  # fmt: skip


class ConfigParam(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that a tool descriptor may or must give its service."""

    name: str
    required: bool = False


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a tool in TrustGraph's two-tier form."""

    name: str
    type: str
    description: str
    required: bool = False


class ServiceDescriptor(msgspec.Struct, frozen=True, omit_defaults=True, rename="kebab"):
    """A service: what its tools must configure and how it may be called.

    Attributes:
        id: names the request stream; letters, digits, ``_``, ``.`` and ``-``.
        request_queue: a foreign name for the request stream, mapped to a key in the namespace.
        response_queue: stored and returned unchanged; replies always go to the caller's own stream.
        config_params: values that tool descriptors give inline.
        scale_to_zero: keep the service callable without live workers; calls wait for one to start.
        queue_limit: most requests queued and running at once; 0 means the publisher's setting.
        sticky_sessions: send all calls of a session to the worker that holds its state.
    """

    id: str
    request_queue: str = ""
    response_queue: str = ""
    config_params: tuple[ConfigParam, ...] = ()
    description: str = ""
    scale_to_zero: bool = False
    queue_limit: int = 0
    sticky_sessions: bool = False

    @property
    def queue(self) -> str:
        """The name from which the request stream's key is made."""
        return self.request_queue or self.id


class ToolDescriptor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as agents see it.

    Attributes:
        name: unique in the namespace.
        service: id of the service that runs it.
        config: values of the service's config params.
        arguments: the arguments in the two-tier form; their types are shown to the model but not enforced.
        parameters: JSON Schema of the arguments, enforced; None when they are untyped or in the two-tier form.
        groups, category: labels for filtering.
        timeout: seconds that a call may take unless the caller sets a limit; 0 means the caller's default.
        effect: the effect of a second execution; empty when undeclared.
        output_limit: most characters of an observation; 0 means the default.
        confirm: whether a person must confirm each call before it runs.
        external: whether it runs outside the operator's control.
        tenants: the only users who may see and call it; empty for all users.
        extensions: the ``x-toolbus`` object, and TrustGraph's states; toolbus itself reads ``sequential`` and ``cache``.
    """

    name: str
    description: str
    service: str
    config: dict[str, Any] = {}
    arguments: tuple[Argument, ...] | None = None
    parameters: dict[str, Any] | None = None
    groups: tuple[str, ...] = ()
    category: str = ""
    timeout: float = 0.0
    effect: Effect = ""
    output_limit: int = 0
    confirm: bool = False
    external: bool = False
    tenants: tuple[str, ...] = ()
    extensions: dict[str, Any] = {}

    @property
    def cacheable(self) -> bool:
        """True if a cached answer may be returned: for tools that only read, unless ``cache`` in ``x-toolbus`` says otherwise."""
        declared = self.extensions.get("cache")
        return self.effect != "once" and (declared if isinstance(declared, bool) else self.effect == "read")

    @property
    def sequential(self) -> bool | None:
        """True if its calls run one after another, by ``sequential`` in ``x-toolbus``; None when that says nothing."""
        declared = self.extensions.get("sequential")
        return declared if isinstance(declared, bool) else None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The arguments as a JSON Schema for models, or None when nothing is known about them."""
        return self.parameters if self.arguments is None else _arguments_schema(self.arguments)


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """The service and tools that a process publishes when it starts, with their digest.

    Attributes:
        versions: the oldest and the newest version of the protocol that the process speaks; None for version 1 alone.
    """

    service: ServiceDescriptor
    tools: tuple[ToolDescriptor, ...] = ()
    owner: str = ""
    digest: str = ""
    versions: tuple[int, int] | None = None

    def with_digest(self) -> Publication:
        """Return the same publication with its digest filled in; the owner is not part of the digest."""
        return msgspec.structs.replace(self, digest=own_digest(msgspec.structs.replace(self, owner="", digest="")))


def parse_service(document: object) -> ServiceDescriptor:
    """Read a service descriptor (``id``, ``config-params``, …) from decoded JSON.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    fields = _mapping(document, "a service descriptor")
    known = {
        "id", "type", "request-queue", "response-queue", "config-params", "description", "scale_to_zero", "queue_limit", "sticky_sessions",
        "x-toolbus",
    }  # fmt: skip
    for key in fields:
        if key not in known:
            raise DescriptorError(f"unknown key {key!r} of service {fields.get('id')!r}", path=f"$.{key}")
    params = [{"name": param} if isinstance(param, str) else param for param in _list(fields.get("config-params", []), "$.config-params")]
    queues = {key: fields.get(key) or "" for key in ("request-queue", "response-queue")}
    named = {key.replace("_", "-"): value for key, value in fields.items()}
    return check_service(_convert({"id": None, **named, **queues, "config-params": params}, ServiceDescriptor))


def check_service(service: ServiceDescriptor) -> ServiceDescriptor:
    """Check rules that types can't express; return the service unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    if not SERVICE_ID.match(service.id):
        raise DescriptorError(f"{service.id!r} is not 1 to 128 letters, digits, '_', '.' or '-'", path="$.id")
    if service.request_queue and not _QUEUE.match(service.request_queue):
        raise DescriptorError(f"{service.request_queue!r} is not 1 to 256 characters without spaces or braces", path="$.request-queue")
    seen: set[str] = set()
    for index, param in enumerate(service.config_params):
        path = f"$.config-params[{index}].name"
        if not param.name:
            raise DescriptorError("a config param has no name", path=path)
        if param.name in RESERVED_KEYS:
            raise DescriptorError(f"config param {param.name!r} has a reserved name", path=path)
        if param.name in seen:
            raise DescriptorError(f"config param {param.name!r} is declared twice", path=path)
        seen.add(param.name)
    if service.queue_limit < 0:
        raise DescriptorError("queue_limit is negative", path="$.queue_limit")
    return service


def is_tool_document(document: object) -> bool:
    """Return whether a document is a tool of toolbus; documents of another ``type`` are ignored."""
    return isinstance(document, Mapping) and document.get("type", TOOL_SERVICE) == TOOL_SERVICE


def parse_tool(document: object, service: ServiceDescriptor | None) -> ToolDescriptor:
    """Read a two-tier tool descriptor from decoded JSON.

    With ``service``, inline config values are checked against its config
    params, and ``type`` and ``service`` may be left out. Without it (the service
    is not known yet), every key that is not reserved is a config value.

    Raises:
        DescriptorError: a key is wrong; the message names the key and the tool.
    """
    known = {} if service is None else {"type": TOOL_SERVICE, "service": service.id}
    fields: dict[str, Any] = {**known, **_mapping(document, "a tool descriptor")}
    name = fields.get("name")
    for key in ("type", "name", "description", "service"):
        if not isinstance(fields.get(key), str) or not fields[key]:
            raise DescriptorError(f"tool {name!r} needs a non-empty string {key!r}", path=f"$.{key}")
    if fields["type"] != TOOL_SERVICE:
        raise DescriptorError(f"tool {name!r} has type {fields['type']!r}, not {TOOL_SERVICE!r}", path="$.type")
    if "arguments" in fields and "parameters" in fields:
        raise DescriptorError(f"tool {name!r} has both 'arguments' and 'parameters'", path="$.parameters")
    _check_effect(str(name), fields.get("effect", ""))
    arguments = _parse_arguments(str(name), fields["arguments"]) if "arguments" in fields else None
    filters = filters_of(str(name), fields, [param.name for param in service.config_params] if service else ())
    optional: dict[str, Any] = {key: fields[key] for key in _OPTIONAL_KEYS if key in fields}
    states, extensions = dict(filters), fields.get("x-toolbus", {})
    if "group" in states:
        optional["groups"] = list(states.pop("group"))
    if states and isinstance(extensions, Mapping):
        extensions = {**extensions, **states}
    tool = _convert(
        {
            **optional,
            "name": name,
            "description": fields["description"],
            "service": fields["service"],
            "config": {key: value for key, value in fields.items() if key not in RESERVED_KEYS and key not in filters},
            "arguments": arguments,
            "parameters": fields.get("parameters"),
            "extensions": extensions,
        },
        ToolDescriptor,
    )
    if service is not None:
        check_config(tool, service)
    return check_tool(tool)


def check_tool(tool: ToolDescriptor) -> ToolDescriptor:
    """Check rules that types can't express; return the tool unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_names(tool.name, [argument.name for argument in tool.arguments or ()], tool.parameters)
    if not TOOL_NAME.match(tool.name):
        raise DescriptorError(f"{tool.name!r} is not 1 to 128 characters without spaces, slashes or braces", path="$.name")
    if not SERVICE_ID.match(tool.service):
        raise DescriptorError(f"tool {tool.name!r} names an impossible service {tool.service!r}", path="$.service")
    if tool.parameters is not None and tool.parameters.get("type", "object") != "object":
        raise DescriptorError(f"the parameters of tool {tool.name!r} must be an object schema", path="$.parameters.type")
    _check_effect(tool.name, tool.effect)
    if not 0 <= tool.timeout < 1e9:
        raise DescriptorError(f"the timeout of tool {tool.name!r} is not a number of seconds", path="$.timeout")
    if tool.output_limit < 0:
        raise DescriptorError(f"the output_limit of tool {tool.name!r} is negative", path="$.output_limit")
    return tool


def check_types(tool: ToolDescriptor) -> ToolDescriptor:
    """Check that a tool made in this process can be published and read back; return the tool unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    try:
        _convert(msgspec.json.decode(msgspec.json.encode(tool)), ToolDescriptor)
    except (DescriptorError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DescriptorError(f"tool {tool.name!r} can't be published: {error}", path=getattr(error, "path", "$")) from None
    return tool


def _check_effect(tool: str, effect: object) -> None:
    flaw = effect_flaw(effect)
    if flaw:
        raise DescriptorError(f"tool {tool!r}: {flaw}", path="$.effect")


def check_config(tool: ToolDescriptor, service: ServiceDescriptor) -> None:
    """Check a tool's inline config values against its service's config params.

    Raises:
        DescriptorError: a key is undeclared, or a required param is missing.
    """
    declared = {param.name for param in service.config_params}
    for key in tool.config:
        if key not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise DescriptorError(
                f"tool {tool.name!r} has the undeclared key {key!r} (config params of {service.id!r}: {known})", path=f"$.{key}"
            )
    for param in service.config_params:
        if param.required and param.name not in tool.config:
            raise DescriptorError(f"tool {tool.name!r} lacks the required config param {param.name!r}", path=f"$.{param.name}")


def tool_document(tool: ToolDescriptor) -> dict[str, Any]:
    """Return the JSON form of a tool, which ``parse_tool`` reads back."""
    document: dict[str, Any] = {"type": TOOL_SERVICE, "name": tool.name, "description": tool.description, "service": tool.service}
    defaults = ToolDescriptor("", "", "")
    if tool.arguments is not None:
        document["arguments"] = [msgspec.to_builtins(argument) for argument in tool.arguments]
    for key in ("parameters", *_OPTIONAL_KEYS):
        value = getattr(tool, key)
        if value != getattr(defaults, key):
            document[key] = value
    if tool.extensions:
        document["x-toolbus"] = tool.extensions
    return {**document, **tool.config}


def _parse_arguments(tool: str, documents: object) -> list[Argument]:
    arguments: dict[str, Argument] = {}
    for index, raw in enumerate(_list(documents, "$.arguments")):
        path = f"$.arguments[{index}]"
        fields = _mapping(raw, f"an argument of tool {tool!r}", path)
        for key in ("name", "type", "description"):
            if not isinstance(fields.get(key), str):
                raise DescriptorError(f"an argument of tool {tool!r} needs a string {key!r}", path=f"{path}.{key}")
        for key in fields:
            if key not in Argument.__struct_fields__:
                raise DescriptorError(f"an argument of tool {tool!r} has the unknown key {key!r}", path=f"{path}.{key}")
        argument = _convert(fields, Argument, path)
        if argument.name in arguments:
            raise DescriptorError(f"argument {argument.name!r} of tool {tool!r} is declared twice", path=f"{path}.name")
        arguments[argument.name] = argument
    return list(arguments.values())


def _arguments_schema(arguments: Iterable[Argument]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument in arguments:
        word = TYPE_WORDS.get(argument.type.lower())
        properties[argument.name] = {"type": word, "description": argument.description} if word else {"description": argument.description}
        if argument.required:
            required.append(argument.name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _mapping(value: object, what: str, path: str = "$") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DescriptorError(f"{what} must be an object, not {type_name(value)}", path=path)
    return value


def _list(value: object, path: str) -> Iterable[Any]:
    if not isinstance(value, (list, tuple)):
        raise DescriptorError(f"expected a list, not {type_name(value)}", path=path)
    return value


def _convert(value: object, type_: type[T], path: str = "$") -> T:
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise DescriptorError(message, path=f"{path}{where.rstrip('`')}") from None
