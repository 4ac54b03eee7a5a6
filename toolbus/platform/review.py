"""Show a person how a tool that waits for approval differs from the one that is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from toolbus.bus.values.results import ConfigurationError
from toolbus.platform.documents import check_locked, digest_of, digest_of_folder, files_of
from toolbus.platform.records import RecordedTool, ToolSource

# Objects below these are compared as a whole: their fields are the tool's author's.
_WHOLE = frozenset({"input_schema", "output_schema", "params"})
# They say where a revision comes from, and a new one always differs in them.
_ORIGINS = frozenset({"revision", "made_by"})


CONFINED_MEMORY = "2g"
"""Most memory of a program that a model wrote, when its source names none."""

CONFINED_PROCESSES = 256
"""Most processes and threads of a program that a model wrote."""


class Change(msgspec.Struct, frozen=True):
    """A field of the record that differs; ``before`` and ``after`` are its JSON values, None where it is not."""

    field: str
    before: Any = None
    after: Any = None


class CodeFile(msgspec.Struct, frozen=True):
    """A file of a tool's code."""

    path: str
    bytes: int


class Review(msgspec.Struct, frozen=True):
    """A tool that waits for approval.

    Attributes:
        digest: of all that is approved; ``toolbus secure approve --digest`` takes it.
        is_new: whether no tool of this id is served now.
        made_by: who recorded it.
        code: the digest of its code.
        changes: fields that differ from the tool that is served, or all that a new one says.
        files: of its code, as far as it is on this machine.
        rights: what its program may do where it runs, in one line.
        note: why there are no files, or what is wrong with them.
        unpinned: a warning, when the approval is not of its code.
    """

    tool_id: str
    digest: str
    revision: int
    is_new: bool
    made_by: str = ""
    code: str = ""
    changes: tuple[Change, ...] = ()
    files: tuple[CodeFile, ...] = ()
    rights: str = ""
    note: str = ""
    unpinned: str = ""


def reviewed(pending: RecordedTool, served: RecordedTool | None) -> Review:
    """Return a pending tool as a person is to see it, without its files."""
    return Review(
        pending.tool_id,
        digest_of(pending),
        pending.revision,
        served is None,
        pending.made_by,
        pending.code,
        tuple(changes(served, pending)),
        rights=rights_of(pending),
        unpinned=unpinned_code(pending),
    )


def rights_of(tool: RecordedTool) -> str:
    """Return what a tool's program may do where it runs, in one line."""
    said = [_rights(tool, source) for source in tool.sources]
    return "; or ".join(dict.fromkeys(said))


def _rights(tool: RecordedTool, source: ToolSource) -> str:
    if source.type == "remote":
        return f"requests are sent to {source.api[0]}"
    if source.type == "docker":
        mounts = f", with {', '.join(source.mounts)} of the host" if source.mounts else ""
        return f"it runs in a container in the network {source.network or 'bridge'!r} of the engine{mounts}"
    if not tool.by_model:
        return "it runs with all rights of the host that serves it"
    network = "it reaches every network that its host reaches" if source.network == "host" else "it reaches no network"
    memory = source.memory or CONFINED_MEMORY
    return (
        f"it runs confined: it reads its own folder and the system's programs, and writes temporary files alone; {network}; "
        f"it has at most {memory} of memory and {CONFINED_PROCESSES} processes"
    )


def changes(before: RecordedTool | None, after: RecordedTool) -> Iterator[Change]:
    """Yield the fields in which two records differ, by their paths."""
    old = {} if before is None else dict(_fields(_plain(before)))
    new = dict(_fields(_plain(after)))
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path) and path not in _ORIGINS:
            yield Change(path, old.get(path), new.get(path))


def _plain(tool: RecordedTool) -> Any:
    return msgspec.json.decode(msgspec.json.encode(tool))


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a document by their paths, without empty ones."""
    if isinstance(value, dict) and value and path.rpartition(".")[2] not in _WHOLE:
        for name, each in value.items():
            yield from _fields(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for index, each in enumerate(value):
            yield from _fields(each, f"{path}[{index}]")
    elif value not in ("", [], {}, None):
        yield path, value


def folder_of(tool: RecordedTool) -> Path | None:
    """Return the folder of a tool's code, if its first source with one names it in full."""
    named = next((source.host_dir for source in tool.sources if source.host_dir), "")
    return Path(named) if named.startswith("/") else None


def unpinned_code(tool: RecordedTool) -> str:
    """Return a warning about code that is not part of what is approved; an empty text when it is, or when there is none."""
    local = next((source.host_dir for source in tool.sources if source.type == "local" or source.host_dir), None)
    if local is None or tool.code:
        return ""
    return f"its code is not pinned: whoever may write its folder{f' {local!r}' if local else ''} changes it without approval"


def with_files(review: Review, tool: RecordedTool) -> Review:
    """Add the files of the code to a review; a note says when they are not here, or not what was recorded."""
    folder = folder_of(tool)
    if folder is None:
        return review
    if not folder.is_dir():
        return msgspec.structs.replace(review, note=f"its code is not on this machine: there is no folder {str(folder)!r}")
    try:
        found = tuple(CodeFile(name, (folder / name).lstat().st_size) for name in files_of(folder))
        digest = digest_of_folder(folder)
    except (ConfigurationError, OSError) as error:
        return msgspec.structs.replace(review, note=f"its code can't be read: {error}")
    note = f"its code is not what was recorded: the folder has the digest {digest}" if tool.code and digest != tool.code else ""
    try:
        check_locked(folder)
    except ConfigurationError as error:
        note = f"{note}; {error}" if note else f"hosts will not start it: {error}"
    return msgspec.structs.replace(review, files=found, note=note)
