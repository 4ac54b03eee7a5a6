"""Built-in tools for data, the weather and files, with nanoClaw's arguments and answers.

They are those of ``backend/tools/builtin`` of github.com/ViperEkura/nanoClaw.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
    return replace(tool, parameters=_schema({"city": city}, "city"), handler=handler)


def _parameters(name: str, description: str, operations: dict[str, Any]) -> dict[str, Any]:
    operation = {"type": "string", "enum": list(operations), "description": "what to do with it"}
    return _schema({name: {"type": "string", "description": description}, "operation": operation}, name, "operation")


def _applied(operations: dict[str, Callable[[Any], dict[str, Any]]], arguments: dict[str, Any], value: Any) -> dict[str, Any]:
    found = operations.get(arguments["operation"])
    if found is None:
        raise ValueError(f"operation is one of {', '.join(operations)}, not {arguments['operation']!r}")
    return found(_checked(value) if isinstance(value, str) else value)


def _checked(text: str) -> str:
    if len(text) > _MOST_TEXT:
        raise ValueError(f"the text has more than {_MOST_TEXT:,} characters")
    return text


_MOST_BYTES = 1_000_000
_MOST_ENTRIES = 1_000
_MODES = {"write": "wb", "append": "ab"}


class Folder:
    """One folder; paths are relative to it, and links that lead out of it are refused."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).resolve()

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the text of a file."""
        path = self._path(arguments)
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{arguments['path']} is larger than {_MOST_BYTES} bytes")
        return {"content": path.read_text("utf-8")}

    def write(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Replace the text of a file, or append to it; create the file."""
        content = str(arguments["content"]).encode()
        mode = arguments.get("mode", "write")
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        path = self._path(arguments)
        before = path.stat().st_size if mode == "append" and path.exists() else 0
        if before + len(content) > _MOST_BYTES:
            raise ValueError(f"the file would be larger than {_MOST_BYTES} bytes")
        with path.open(_MODES[mode]) as file:
            file.write(content)
        return {"written": len(content)}

    def delete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Delete a file, or an empty folder."""
        path = self._path(arguments)
        if path == self._root:
            raise PermissionError("the folder of the file tools itself can't be deleted")
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        return {"deleted": True}

    def list(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a folder, by name."""
        entries = sorted(self._path({"path": ".", **arguments}).iterdir())
        shown = [{"name": entry.name, "type": "folder" if entry.is_dir() else "file"} for entry in entries[:_MOST_ENTRIES]]
        return {"entries": shown, "total": len(entries)}

    def exists(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return whether a path exists."""
        return {"exists": self._path(arguments).exists()}

    def mkdir(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Create a folder and its parents."""
        self._path(arguments).mkdir(parents=True, exist_ok=True)
        return {"created": True}

    def _path(self, arguments: dict[str, Any]) -> Path:
        path = (self._root / str(arguments["path"])).resolve()
        if not path.is_relative_to(self._root):
            raise PermissionError(f"{arguments['path']} is outside of the folder")
        return path


def file_tools(root: str) -> list[ToolDefinition]:
    """Return the file tools of a folder."""
    folder = Folder(root)
    path = {"path": {"type": "string", "description": "path relative to the folder"}}
    content = {"content": {"type": "string", "description": "the text"}}
    mode = {"mode": {"type": "string", "enum": [*_MODES], "description": "replace what is there (write), or add to it", "default": "write"}}
    return [
        ToolDefinition("file_read", "Read a text file", _schema(path, "path"), folder.read, "file"),
        ToolDefinition("file_write", "Write a text file", _schema({**path, **content, **mode}, "path", "content"), folder.write, "file"),
        ToolDefinition("file_delete", "Delete a file or an empty folder", _schema(path, "path"), folder.delete, "file"),
        ToolDefinition("file_list", "List a folder", _schema(path), folder.list, "file"),
        ToolDefinition("file_exists", "Tell whether a file or folder exists", _schema(path, "path"), folder.exists, "file"),
        ToolDefinition("file_mkdir", "Make a folder", _schema(path, "path"), folder.mkdir, "file"),
    ]


def _schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}
