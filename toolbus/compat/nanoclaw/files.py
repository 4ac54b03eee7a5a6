"""File tools for one folder: nothing outside of it is read, named or changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_MOST_BYTES = 1_000_000
_MOST_ENTRIES = 1_000
_MODES = {"write": "wb", "append": "ab"}


class About(NamedTuple):
    """A file tool without its name."""

    description: str
    parameters: dict[str, Any]
    handler: Callable[[dict[str, Any]], dict[str, Any]]


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


def file_tools(root: str) -> dict[str, About]:
    """Return the file tools of a folder, by name."""
    folder = Folder(root)
    path = {"path": {"type": "string", "description": "path relative to the folder"}}
    content = {"content": {"type": "string", "description": "the text"}}
    mode = {"mode": {"type": "string", "enum": [*_MODES], "description": "replace what is there (write), or add to it", "default": "write"}}
    return {
        "file_read": About("Read a text file", _schema(path, "path"), folder.read),
        "file_write": About("Write a text file", _schema({**path, **content, **mode}, "path", "content"), folder.write),
        "file_delete": About("Delete a file or an empty folder", _schema(path, "path"), folder.delete),
        "file_list": About("List a folder", _schema(path), folder.list),
        "file_exists": About("Tell whether a file or folder exists", _schema(path, "path"), folder.exists),
        "file_mkdir": About("Make a folder", _schema(path, "path"), folder.mkdir),
    }


def _schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}
