"""Describe the gateway as an OpenAPI 3.1 document, with one operation for each live tool."""

from __future__ import annotations

import importlib.metadata
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any
from urllib.parse import quote

from toolbus.client.tools.definitions import description_of
from toolbus.client.tools.tool import Tool
from toolbus.encoding import encode_data
from toolbus.gateway.openapi_paths import CALL_PARAMETERS, PATHS, RESPONSES, SCHEMAS, call_responses, parameters
from toolbus.gateway.principals import Principal

_MOST_KEPT = 64
# Where a schema holds values rather than schemas.
_VALUES = frozenset({"const", "default", "enum", "examples", "example"})
# Where it holds schemas by names of its own.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ODD = re.compile(r"[^A-Za-z0-9._-]")


class Documents:
    """The documents that were made since the last change of the catalogue, by what their readers may see.

    Args:
        max_timeout: the longest time of a call, in seconds.
    """

    def __init__(self, max_timeout: float) -> None:
        self._max_timeout = max_timeout
        self._kept: OrderedDict[Hashable, tuple[int, bytes]] = OrderedDict()

    def of(self, version: int, principal: Principal, tools: Mapping[str, Tool]) -> bytes:
        """Return the document for a principal, as JSON."""
        key = (principal.groups, principal.tools, principal.user)
        found = self._kept.get(key)
        if found is None or found[0] != version:
            found = self._kept[key] = (
                version,
                encode_data(document([tool for tool in tools.values() if tool.available], self._max_timeout)),
            )
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found[1]


def document(tools: list[Tool], max_timeout: float) -> dict[str, Any]:
    """Return the document for some tools, whose calls take ``max_timeout`` seconds at most."""
    paths, schemas = dict(PATHS), dict(SCHEMAS)
    for tool in tools:
        key = f"tool.{_component(tool.name)}"
        schemas[key] = located(tool.parameters, f"#/components/schemas/{key}")
        paths[f"/v1/tools/{quote(tool.name, safe='')}/invoke"] = {"post": _operation(tool, key)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toolbus",
            "version": importlib.metadata.version("toolbus"),
            "description": "The tools of a namespace, over HTTP.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {"schemas": schemas, "responses": RESPONSES, "parameters": parameters(max_timeout)},
    }


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


def _operation(tool: Tool, key: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "operationId": f"invoke_{_component(tool.name)}",
        "summary": tool.name,
        "description": description_of(tool),
        "tags": list(tool.groups) or [tool.category or tool.service],
        "parameters": CALL_PARAMETERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{key}"}}}},
        "responses": call_responses("ToolResult"),
    }
    if tool.descriptor.effect:
        about["x-toolbus-effect"] = tool.descriptor.effect
    return about
