"""The OpenAPI document of a gateway: its operations, and one for each tool."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import msgspec.inspect

from toolbus.bus.client.tools.definitions import description_of
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.results import ERROR_KINDS
from toolbus.edges.gateway.bodies import MEDIA_TYPE, MOST_KEY
from toolbus.edges.gateway.operations import Operation

Part = dict[str, Any]

_TEXT: Part = {"type": "string"}
_PROBLEM: Part = {
    "type": "object",
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "code": _TEXT,
        "retryable": {"type": "boolean"},
        "details": {},
        "id": _TEXT,
        "result": {"$ref": "#/components/schemas/ToolResult"},
    },
    "required": ["type", "title", "status", "detail"],
}

_PROBLEMS = {
    400: "The body is no JSON.",
    401: "Nobody that is known has sent the request.",
    403: "The sender may not do this.",
    404: "There is none of this name.",
    409: "The call was cancelled, its outcome is unknown, or its key stands for other work.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "An argument, a header or a parameter is wrong.",
    429: "Too much waits or came from this sender; see Retry-After.",
    502: "The service failed.",
    503: "Nobody can do it now; see Retry-After.",
    504: "The call took longer than it may.",
}

_RETRY: Part = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}

RESPONSES: Part = {
    f"Problem{status}": {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        **({"headers": _RETRY} if status in {429, 503} else {}),
    }
    for status, description in _PROBLEMS.items()
}


def _parameter(name: str, place: str, description: str, schema: Part, *, required: bool = False) -> Part:
    return {"name": name, "in": place, "description": description, "required": required, "schema": schema}


_LINE: Part = {"type": "string", "minLength": 1, "maxLength": MOST_KEY, "pattern": "^[!-~]+$"}


CALL_PARAMETERS: list[Part] = [
    {"$ref": "#/components/parameters/Timeout"},
    _parameter("Toolbus-Session", "header", "The session that the call belongs to.", _LINE),
    _parameter("Idempotency-Key", "header", "Requests with one key share one execution.", _LINE),
]


_IN_PATHS: Part = {
    "name": {"type": "string", "minLength": 1, "maxLength": 64},
    "id": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
}
_IN_PATH = re.compile(r"\{(\w+)(?::\w+)?\}")

# Where a schema holds values rather than schemas.
_VALUES = frozenset({"const", "default", "enum", "examples", "example"})
# Where it holds schemas by names of its own.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ODD = re.compile(r"[^A-Za-z0-9._-]")


def document(operations: Sequence[Operation], tools: Sequence[Tool], max_timeout: float) -> Part:
    """Return the document for some operations and tools, whose calls take ``max_timeout`` seconds at most."""
    schemas: Part = {"Problem": _PROBLEM}
    paths: Part = {}

    def schema_of(type: Any) -> Part:
        [found], named = msgspec.json.schema_components([type], ref_template="#/components/schemas/{name}")
        # Docstrings of types are for programmers in Python.
        schemas.update({name: {key: value for key, value in each.items() if key != "description"} for name, each in named.items()})
        return found

    for each in operations:
        if each.summary is not None:
            body = None if each.body is None else schema_of(each.body)
            answer = None if each.answers is None else schema_of(each.answers)
            paths.setdefault(_IN_PATH.sub(r"{\1}", each.path), {})[each.method.lower()] = _described(each, body, answer)
    for each in operations:
        if each.summary is not None and _is_whole(each.answers):
            schemas[each.answers.__name__]["required"] = [*schemas[each.answers.__name__]["properties"]]
    [invoke] = (each for each in operations if each.path.endswith("/invoke"))
    for tool in tools:
        key = f"tool.{_component(tool.name)}"
        schemas[key] = located(tool.parameters, f"#/components/schemas/{key}")
        described = _described(invoke, {"$ref": f"#/components/schemas/{key}"}, {"$ref": "#/components/schemas/ToolResult"})
        about = {
            "operationId": f"invoke_{_component(tool.name)}",
            "summary": tool.name,
            "description": description_of(tool),
            "tags": list(tool.groups) or [tool.category or tool.service],
            **({"x-toolbus-effect": tool.descriptor.effect} if tool.descriptor.effect else {}),
        }
        paths[f"/v1/tools/{quote(tool.name, safe='')}/invoke"] = {"post": {**described, "parameters": CALL_PARAMETERS, **about}}
    timeout: Part = {"type": "number", "exclusiveMinimum": 0, "maximum": max_timeout}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toolbus",
            "version": importlib.metadata.version("toolbus"),
            "description": "The tools of a namespace, over HTTP.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": RESPONSES,
            "parameters": {"Timeout": _parameter("Toolbus-Timeout", "header", "Seconds until the call ends in any case.", timeout)},
        },
    }


def _is_whole(type: Any) -> bool:
    """Return whether an answer of a type has all of its fields, also those that have defaults."""
    return msgspec.inspect.is_struct_type(type) and not type.__struct_config__.omit_defaults


def _described(operation: Operation, body: Part | None, answer: Part | None) -> Part:
    found: Part = {"operationId": operation.handler.__name__, "summary": operation.summary}
    in_path = _IN_PATH.findall(operation.path)
    parameters = [_parameter(name, "path", "Its name.", _IN_PATHS.get(name, _TEXT), required=True) for name in in_path]
    if operation.query is not None:
        fields = msgspec.json.schema(operation.query)["$defs"][operation.query.__name__]["properties"]
        parameters += [_parameter(name, "query", schema.pop("description"), schema) for name, schema in fields.items()]
    if operation.calls:
        parameters += CALL_PARAMETERS
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    done: Part = {"description": "The result; that of a failure of the tool's own, too." if operation.calls else "Done."}
    if answer is not None:
        done["content"] = {operation.media_type: {"schema": answer}}
    if operation.calls:
        done["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if operation.headers:
        done["headers"] = {name: {"description": about, "schema": _TEXT} for name, about in operation.headers.items()}
    problems = {status: {"$ref": f"#/components/responses/Problem{status}"} for status in sorted(_problems(operation))}
    found["responses"] = {str(status): about for status, about in (dict.fromkeys(operation.statuses, done) | problems).items()}
    return found


def _problems(operation: Operation) -> set[int]:
    """Return the statuses of an operation's failures."""
    found = {*operation.problems}
    if operation.may:
        found |= {401, 403, 429}
    if operation.query is not None:
        found |= {422}
    if operation.body is not None:
        found |= {400, 413, 415, 422}
    if operation.calls:
        found |= {about.status for about in ERROR_KINDS.values()}
    return found


def located(schema: Any, root: str) -> Any:
    """Return a schema whose references within itself lead to its place in a larger document."""
    if isinstance(schema, list):
        return [located(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"$ref", "$dynamicRef"} and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            found[key] = root + value[1:]
        elif key in _VALUES or key in {"$schema", "$id"}:
            if key not in {"$schema", "$id"}:
                found[key] = value
        elif key in _NAMED and isinstance(value, dict):
            found[key] = {name: located(each, root) for name, each in value.items()}
        else:
            found[key] = located(value, root)
    return found


def _component(name: str) -> str:
    """Return a name that a component may have; different for different names."""
    return _ODD.sub(lambda found: f"_{ord(found[0]):x}_", name)
