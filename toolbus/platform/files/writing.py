"""Write records to a folder's files, in the form that the files have already."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolbus.platform.files.entries import load, unwrapped
from toolbus.platform.files.names import GROUPS, IMPORTED, OWN, REGISTRY, RUNTIMES, SOURCE_FIELDS, SOURCES
from toolbus.platform.records import RecordedTool, ToolSource
from toolbus.platform.store import Snapshot
from toolbus.results import ConfigurationError, DescriptorError


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
            _replace(folder / file, msgspec.json.format(msgspec.json.encode(_in_form(folder, file, by_id, word)), indent=2) + b"\n")
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


def _in_form(folder: Path, file: str, by_id: Mapping[str, Any], word: str) -> Any:
    """Return the entries as a list, if the file has one, under its own word if they stand there; by id otherwise."""
    try:
        before = load(folder, file)
    except DescriptorError:
        before = None
    inside = unwrapped(before, word)
    entries: Any = by_id
    if isinstance(inside, list):
        entries = [{"tool_id": name, "sources": each} if isinstance(each, list) else each for name, each in by_id.items()]
    return entries if inside is before else {word: entries}


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
