"""Write records to a folder's files, in the form that the files have already."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolbus.client.tools.groups import ToolGroup
from toolbus.platform.files.entries import load, unwrapped
from toolbus.platform.files.names import GROUPS, IMPORTED, OWN, REGISTRY, RUNTIMES, SOURCE_FIELDS, SOURCES
from toolbus.platform.records import RecordedTool, ToolMeta, ToolSource
from toolbus.platform.store import Snapshot
from toolbus.results import ConfigurationError, DescriptorError

_INDENT = b"  "
_FIRST_INDENT = re.compile(rb"\s*[\[{]\r?\n([ \t]+)")
# Of an entry's fields that may be left out; those of a source stand in a file of their own.
_DEFAULTS: dict[str, dict[str, Any]] = {
    REGISTRY: msgspec.json.decode(msgspec.json.encode(ToolMeta(tool_id=""))),
    SOURCES: {name: getattr(ToolSource(type="local"), name) for name in SOURCE_FIELDS if name != "type"},
    GROUPS: msgspec.json.decode(msgspec.json.encode(ToolGroup(group_id=""))),
    RUNTIMES: {},
}


def write_folder(folder: Path, records: Snapshot) -> list[str]:
    """Write the files; return their names. Each is replaced as a whole.

    Raises:
        ConfigurationError: the folder can't be written to.
    """
    documents: dict[str, tuple[dict[str, Any], str]] = {
        REGISTRY: ({name: _tool(tool) for name, tool in records.tools.items()}, "tools"),
        SOURCES: ({name: [_source(each) for each in tool.sources] for name, tool in records.tools.items()}, "sources"),
        GROUPS: ({name: msgspec.to_builtins(group) for name, group in records.groups.items()}, "groups"),
    }
    if records.runtimes:
        runtimes = {name: {"name": each.name, "description": each.description} for name, each in records.runtimes.items()}
        documents[RUNTIMES] = ({name: {"backend_runtime": name, **each} for name, each in runtimes.items()}, "backend_runtimes")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, (by_id, word) in documents.items():
            _replace(folder / file, _document(folder, file, by_id, word))
    except OSError as error:
        raise ConfigurationError(f"can't write to {str(folder)!r}: {error.strerror or error}") from None
    return list(documents)


def _tool(tool: RecordedTool) -> dict[str, Any]:
    own = {name: value for name, value in msgspec.to_builtins(tool).items() if name not in {"meta", "sources", "made_by"}}
    if tool.made_by != IMPORTED:
        own["made_by"] = tool.made_by
    entry: dict[str, Any] = msgspec.to_builtins(tool.meta)
    return {**entry, OWN: own} if own else entry


def _source(source: ToolSource) -> dict[str, Any]:
    entry: dict[str, Any] = {name: getattr(source, name) for name in SOURCE_FIELDS}
    own = {name: value for name, value in msgspec.to_builtins(source).items() if name not in entry}
    return {**entry, OWN: own} if own else entry


def _document(folder: Path, file: str, by_id: Mapping[str, Any], word: str) -> bytes:
    """Return a file's new text, in the form that it has, with entries that say the same as they stand there."""
    try:
        before = load(folder, file)
        if before is not None:
            return _in_form((folder / file).read_bytes(), before, file, by_id, word)
    except (DescriptorError, msgspec.DecodeError):
        pass
    return _joined(by_id, {}, _INDENT, 1) + b"\n"


def _in_form(old: bytes, before: Any, file: str, by_id: Mapping[str, Any], word: str) -> bytes:
    indent = found[1] if (found := _FIRST_INDENT.match(old)) else _INDENT
    inside = unwrapped(before, word)
    text: bytes | msgspec.Raw = old if inside is before else msgspec.json.decode(old, type=dict[str, msgspec.Raw])[word]
    if as_list := isinstance(inside, list):
        by_id = {name: {"tool_id": name, "sources": each} if isinstance(each, list) else each for name, each in by_id.items()}
        parts = [(_id_in(each), raw) for each, raw in zip(inside, msgspec.json.decode(text, type=list[msgspec.Raw]), strict=True)]
    else:
        parts = list(msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items())
    kept = {name: bytes(raw) for name, raw in parts if name in by_id and _says(_plain(raw), _plain(by_id[name]), _DEFAULTS[file])}
    # Entries that are there already stay in their order.
    by_id = {name: by_id[name] for name in (*kept, *(each for each in by_id if each not in kept))}
    if inside is before:
        return _joined(by_id, kept, indent, 1, as_list=as_list) + b"\n"
    return b"{\n" + indent + msgspec.json.encode(word) + b": " + _joined(by_id, kept, indent, 2, as_list=as_list) + b"\n}\n"


def _plain(entry: Any) -> Any:
    return msgspec.json.decode(entry if isinstance(entry, msgspec.Raw) else msgspec.json.encode(entry))


def _id_in(entry: Any) -> Any:
    return (
        next((entry[field] for field in ("tool_id", "group_id", "backend_runtime") if field in entry), None)
        if isinstance(entry, dict)
        else None
    )


def _says(before: Any, now: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether an entry that stands in a file says what is to be written; fields with their defaults may be left out."""
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(_says(*pair, defaults) for pair in zip(before, now, strict=True))
    if not isinstance(before, dict) or not isinstance(now, dict):
        return bool(before == now)
    if before.keys() - now.keys():
        return False
    return all(
        _says(before[name], value, defaults) if name == "sources" and name in before else before.get(name, defaults.get(name)) == value
        for name, value in now.items()
    )


def _joined(by_id: Mapping[str, Any], kept: Mapping[str, bytes], indent: bytes, depth: int, *, as_list: bool = False) -> bytes:
    """Return entries as a JSON list or object, each beginning on a line of its own at a depth."""
    if not by_id:
        return b"[]" if as_list else b"{}"
    lines = []
    for name, entry in by_id.items():
        text = kept.get(name) or msgspec.json.format(msgspec.json.encode(entry), indent=2).replace(b"\n", b"\n" + indent * depth)
        lines.append(indent * depth + (b"" if as_list else msgspec.json.encode(name) + b": ") + text)
    first, last = (b"[", b"]") if as_list else (b"{", b"}")
    return first + b"\n" + b",\n".join(lines) + b"\n" + indent * (depth - 1) + last


def _replace(path: Path, document: bytes) -> None:
    """Write a file beside its place, and put it there at once, so that nobody reads half of it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(document)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
