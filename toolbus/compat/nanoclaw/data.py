"""The data and weather tools with nanoClaw's arguments and answers (github.com/ViperEkura/nanoClaw, ``backend/tools/builtin``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolbus.compat.nanoclaw.core import ToolDefinition, ToolResult

_MOST_TEXT = 2_000_000

_TEXT: dict[str, Callable[[str], dict[str, Any]]] = {
    "count": lambda text: {"count": len(text)},
    "lines": lambda text: {"lines": len(text.splitlines())},
    "words": lambda text: {"words": len(text.split())},
    "upper": lambda text: {"result": text.upper()},
    "lower": lambda text: {"result": text.lower()},
    "reverse": lambda text: {"result": text[::-1]},
}


def _keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("JSON root element is not an object")  # noqa: TRY004 - told to a model, as what it wrote
    return {"keys": list(value)}


_JSON: dict[str, Callable[[Any], dict[str, Any]]] = {
    "parse": lambda value: {"data": value},
    "format": lambda value: {"result": json.dumps(value, indent=2, ensure_ascii=False)},
    "keys": _keys,
    "validate": lambda _: {"valid": True},
}


def data_tools() -> list[ToolDefinition]:
    """Return text_process and json_process."""
    return [
        ToolDefinition(
            "text_process",
            "Count what a text has (characters, lines, words), or change its letters.",
            _parameters("text", "the text", _TEXT),
            lambda arguments: _applied(_TEXT, arguments, arguments["text"]),
            "data",
        ),
        ToolDefinition(
            "json_process",
            "Parse, format or check a JSON document, or list the keys of its object.",
            _parameters("json_string", "the document as text", _JSON),
            lambda arguments: _applied(_JSON, arguments, json.loads(_checked(arguments["json_string"]))),
            "data",
        ),
    ]


def city_weather(tool: ToolDefinition) -> ToolDefinition:
    """Return the weather tool with a city for its place, and the four facts of nanoClaw's answer first."""

    def handler(arguments: dict[str, Any]) -> Any:
        city = arguments["city"]
        result = tool.handler({"location": city})
        if not isinstance(result, ToolResult) or not result.success:
            return result
        report, now = result.data, result.data["current"]
        facts = {"temperature": now["temperature"], "humidity": now["humidity"], "description": now["sky"], "query_time": now["time"]}
        return ToolResult.ok({"city": city, **facts, "report": report})

    city = {"type": "string", "description": "the city by name, e.g. Berlin"}
    return replace(tool, parameters={"type": "object", "properties": {"city": city}, "required": ["city"]}, handler=handler)


def _parameters(name: str, description: str, operations: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": description},
            "operation": {"type": "string", "enum": list(operations), "description": "what to do with it"},
        },
        "required": [name, "operation"],
    }


def _applied(operations: dict[str, Callable[[Any], dict[str, Any]]], arguments: dict[str, Any], value: Any) -> dict[str, Any]:
    found = operations.get(arguments["operation"])
    if found is None:
        raise ValueError(f"operation is one of {', '.join(operations)}, not {arguments['operation']!r}")
    return found(_checked(value) if isinstance(value, str) else value)


def _checked(text: str) -> str:
    if len(text) > _MOST_TEXT:
        raise ValueError(f"the text has more than {_MOST_TEXT:,} characters")
    return text
