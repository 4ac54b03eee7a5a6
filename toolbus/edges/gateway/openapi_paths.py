"""The parts of the OpenAPI document that no tool changes."""

from __future__ import annotations

from typing import Any, get_args

from toolbus.bus.client.tools.definitions import FORMATS
from toolbus.bus.values.results import ErrorType, Origin
from toolbus.edges.gateway.bodies import MEDIA_TYPE, MOST_KEY

Part = dict[str, Any]

_TEXT: Part = {"type": "string"}
_TEXTS: Part = {"type": "array", "items": _TEXT}


def _ref(name: str) -> Part:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Part, required: list[str] | None = None, *, closed: bool = False) -> Part:
    found: Part = {"type": "object", "properties": properties, "required": sorted(properties) if required is None else required}
    if closed:
        found["additionalProperties"] = False
    return found


_GROUP: Part = {
    "name": _TEXT, "description": _TEXT, "category": _TEXT, "tool_ids": _TEXTS, "usage_order": _TEXTS, "usage_example": _TEXT,
}  # fmt: skip

SCHEMAS: Part = {
    "ErrorInfo": _object(
        {
            "type": {"type": "string", "enum": sorted(get_args(ErrorType))},
            "code": _TEXT,
            "message": _TEXT,
            "retryable": {"type": "boolean"},
            "retry_after": {"type": ["number", "null"]},
            "details": {},
            "origin": {"type": "string", "enum": sorted(get_args(Origin))},
        },
        ["type"],
    ),
    "Blob": _object({"media_type": _TEXT, "data": {"type": "string", "contentEncoding": "base64"}}),
    "ToolResult": _object(
        {
            "success": {"type": "boolean"},
            "output": {"type": ["string", "null"]},
            "data": {},
            "error": {"anyOf": [_ref("ErrorInfo"), {"type": "null"}]},
            "content": {"type": "array", "items": _ref("Blob")},
            "meta": {"type": "object"},
        }
    ),
    "Problem": _object(
        {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "code": _TEXT,
            "retryable": {"type": "boolean"},
            "details": {},
            "id": _TEXT,
            "result": _ref("ToolResult"),
        },
        ["type", "title", "status", "detail"],
    ),
    "RunTool": _object({"tool_id": _TEXT, "params": {"type": "object"}}, ["tool_id"], closed=True),
    "Chat": _object({"message": _TEXT, "chat_id": {"type": "string", "maxLength": 255}}, ["message"], closed=True),
    "ChatAnswer": _object({"response": _TEXT, "chat_id": _TEXT}),
    "ToolCalls": {
        "description": 'A model\'s message as its provider gave it, or {"message": …} with options beside it.',
        "type": ["object", "array"],
    },
    "Answers": _object({"messages": {"type": "array", "items": {"type": "object"}}, "calls": {"type": "array", "items": _ref("Answered")}}),
    "Answered": _object(
        {
            "id": _TEXT,
            "name": _TEXT,
            "success": {"type": "boolean"},
            "error": {"anyOf": [_ref("ErrorInfo"), {"type": "null"}]},
            "changes": _TEXTS,
        }
    ),
    "Tool": _object(
        {
            "name": _TEXT,
            "description": _TEXT,
            "parameters": {"type": "object"},
            "output_schema": {"type": "object"},
            "service": _TEXT,
            "category": _TEXT,
            "groups": _TEXTS,
            "runtime": _TEXT,
            "effect": {"type": "string", "enum": ["", "read", "idempotent", "once"]},
            "timeout": {"type": "number"},
            "confirm": {"type": "boolean"},
            "external": {"type": "boolean"},
            "available": {"type": "boolean"},
        }
    ),
    "Tools": _object(
        {"tools": {"type": "array", "items": _ref("Tool")}, "total": {"type": "integer"}, "next": {"type": ["string", "null"]}}
    ),
    "Group": _object({"group_id": _TEXT, **_GROUP}),
    "NewGroup": _object(_GROUP, [], closed=True),
    "Platform": _object(
        {
            "backend_runtimes": {"type": "array", "items": {"type": "object"}},
            "groups": {"type": "array", "items": _ref("Group")},
            "tools": {"type": "array", "items": {"type": "object"}},
        }
    ),
}

_PROBLEMS = {
    "400": "The body is no JSON.",
    "401": "Nobody that is known has sent the request.",
    "403": "The sender may not do this.",
    "404": "There is none of this name.",
    "409": "The call was cancelled, its outcome is unknown, or its key stands for other work.",
    "413": "The body is too large.",
    "415": "The body is not said to be JSON.",
    "422": "An argument, a header or a parameter is wrong.",
    "429": "Too much waits or came from this sender; see Retry-After.",
    "502": "The service failed.",
    "503": "Nobody can do it now; see Retry-After.",
    "504": "The call took longer than it may.",
}

_RETRY: Part = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}

RESPONSES: Part = {
    f"Problem{status}": {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": _ref("Problem")}},
        **({"headers": _RETRY} if status in {"429", "503"} else {}),
    }
    for status, description in _PROBLEMS.items()
}


def _answers(schema: str, *problems: str, status: str = "200") -> Part:
    found: Part = {status: {"description": "Done.", "content": {"application/json": {"schema": _ref(schema)}}}}
    return found | {each: {"$ref": f"#/components/responses/Problem{each}"} for each in ("401", "403", "429", *problems)}


def call_responses(schema: str) -> Part:
    """Return the answers to a request that makes a call."""
    found = _answers(schema, "400", "404", "409", "413", "415", "422", "502", "503", "504")
    found["200"]["description"] = "The result; that of a failure of the tool's own, too."
    found["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return found


def _parameter(name: str, place: str, description: str, schema: Part, *, required: bool = False) -> Part:
    return {"name": name, "in": place, "description": description, "required": required, "schema": schema}


_LINE: Part = {"type": "string", "minLength": 1, "maxLength": MOST_KEY, "pattern": "^[!-~]+$"}


def parameters(max_timeout: float) -> Part:
    """Return the parameters that depend on the gateway's settings; ``max_timeout`` in seconds."""
    timeout: Part = {"type": "number", "exclusiveMinimum": 0, "maximum": max_timeout}
    return {"Timeout": _parameter("Toolbus-Timeout", "header", "Seconds until the call ends in any case.", timeout)}


CALL_PARAMETERS: list[Part] = [
    {"$ref": "#/components/parameters/Timeout"},
    _parameter("Toolbus-Session", "header", "The session that the call belongs to.", _LINE),
    _parameter("Idempotency-Key", "header", "Requests with one key share one execution.", _LINE),
]


def _named(name: str, pattern: str = "") -> list[Part]:
    schema: Part = {"type": "string", "minLength": 1, "maxLength": 64}
    return [_parameter(name, "path", "Its name.", schema | ({"pattern": pattern} if pattern else {}), required=True)]


def _operation(id: str, summary: str, responses: Part, parameters: list[Part] | None = None, body: str = "") -> Part:
    found: Part = {"operationId": id, "summary": summary, "responses": responses}
    if parameters:
        found["parameters"] = parameters
    if body:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return found


_SEARCH: list[Part] = [
    _parameter("name", "query", "Any of these.", _TEXTS),
    _parameter("q", "query", "Words that the name, description or category has.", _TEXTS),
    _parameter("category", "query", "Any of these.", _TEXTS),
    _parameter("group", "query", "In any of these.", _TEXTS),
    _parameter("runtime", "query", "Any of these.", _TEXTS),
    _parameter("available", "query", "Whether a live worker serves it.", {"type": "boolean"}),
    _parameter("limit", "query", "Most tools of a page; else 100, with `format` all.", {"type": "integer", "minimum": 1, "maximum": 1000}),
    _parameter("cursor", "query", "`next` of the page before.", _TEXT),
    _parameter("format", "query", "Answer definitions of live tools for a model, in this format.", {"type": "string", "enum": [*FORMATS]}),
    _parameter("strict", "query", "Definitions that a provider can enforce; with `format`.", {"type": "boolean"}),
    _parameter("namespaces", "query", "Gather the tools of a group; with `format=responses`.", {"type": "boolean"}),
]
_FOUND: Part = {
    "description": "A page of tools; with `format`, a list of definitions.",
    "headers": {"Link": {"description": "The next page of definitions.", "schema": _TEXT}},
    "content": {"application/json": {"schema": {"anyOf": [_ref("Tools"), {"type": "array", "items": {"type": "object"}}]}}},
}
_PLAIN: Part = {"200": {"description": "Yes.", "content": {"application/json": {"schema": {"type": "object"}}}}}
_METRICS: Part = {"200": {"description": "Metrics.", "content": {"text/plain": {"schema": _TEXT}}}}

PATHS: Part = {
    "/health": {"get": _operation("health", "Whether the gateway lives", _PLAIN)},
    "/ready": {"get": _operation("ready", "Whether it can do its work", _PLAIN | {"503": {"$ref": "#/components/responses/Problem503"}})},
    "/metrics": {"get": _operation("metrics", "Metrics for Prometheus", _METRICS | {"403": {"$ref": "#/components/responses/Problem403"}})},
    "/tools": {"get": _operation("everything", "All runtimes, groups and tools", _answers("Platform"))},
    "/run_tool": {"post": _operation("run_tool", "Call a tool", call_responses("ToolResult"), CALL_PARAMETERS, "RunTool")},
    "/v1/tool_calls": {
        "post": _operation("tool_calls", "Run the tool calls of a model's message", call_responses("Answers"), CALL_PARAMETERS, "ToolCalls")
    },
    "/chat": {"post": _operation("chat", "Talk to the chat service", call_responses("ChatAnswer"), CALL_PARAMETERS[:1], "Chat")},
    "/v1/tools": {"get": _operation("search_tools", "Find tools", {**_answers("Tools", "422"), "200": _FOUND}, _SEARCH)},
    "/v1/tools/{name}": {"get": _operation("describe_tool", "Describe a tool", _answers("Tool", "404"), _named("name"))},
    "/v1/groups": {
        "get": _operation("groups", "List groups", {**_answers("Platform"), "200": {
            "description": "Done.",
            "content": {"application/json": {"schema": _object({"groups": {"type": "array", "items": _ref("Group")}})}},
        }})
    },
    "/v1/groups/{id}": {
        "get": _operation("group", "Describe a group", _answers("Group", "404"), _named("id", "^[A-Za-z0-9_.-]{1,64}$")),
        "put": _operation(
            "put_group",
            "Store a group",
            {**_answers("Group", "400", "404", "413", "415", "422", "503"), **_answers("Group", status="201")},
            _named("id", "^[A-Za-z0-9_.-]{1,64}$"),
            "NewGroup",
        ),
        "delete": _operation(
            "delete_group",
            "Delete a group",
            {**{k: v for k, v in _answers("Group", "404", "422", "503").items() if k != "200"}, "204": {"description": "Deleted."}},
            _named("id", "^[A-Za-z0-9_.-]{1,64}$"),
        ),
    },
}  # fmt: skip
