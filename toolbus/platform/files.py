"""Records as the files ``registry.json``, ``sources.json`` and ``groups.json`` of a folder."""

from __future__ import annotations

import os
import re
import stat
import typing
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.schema.documents import read_document
from toolbus.bus.support.display import one_line, shortened
from toolbus.bus.support.files import replace
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ConfigurationError, DescriptorError
from toolbus.platform.checks import check_group, check_recorded, check_runtime
from toolbus.platform.documents import Record, unknown_fields
from toolbus.platform.records import BackendRuntime, RecordedTool, ToolMeta, ToolSource
from toolbus.platform.store import Snapshot

REGISTRY = "registry.json"
SOURCES = "sources.json"
GROUPS = "groups.json"
RUNTIMES = "backend_runtimes.json"

OWN = "x-toolbus"
"""The object in an entry that holds toolbus's own fields, which readers of the files from elsewhere leave out."""

SOURCE_FIELDS = ("type", "host_dir", "endpoint_path", "http_method", "internal_port")
"""The fields of a source that are not toolbus's own."""

ROUTE_FIELDS = ("tool_id", "active_source", "state", "pid", "port")
"""Fields beside ``sources`` that tell where a tool ran when the file was written; they are not read."""

IMPORTED = "import"
"""Says in ``made_by`` that a record came from these files."""

MOST_FILE = 64 * 1024 * 1024
"""Most bytes of one file."""


_MOST_TOLD = 80


class Wrong(NamedTuple):
    """An entry that was left out, and why; ``id`` is its place in the file when it has none."""

    file: str
    id: str
    reason: str


FILES: Mapping[str, tuple[str, str]] = {
    REGISTRY: ("tool_id", "tools"),
    SOURCES: ("tool_id", "sources"),
    GROUPS: ("group_id", "groups"),
    RUNTIMES: ("backend_runtime", "backend_runtimes"),
}
"""The files, with the field of an entry's id, and the word under which all entries may stand."""


def load(folder: Path, file: str) -> Any:
    """Return a file's JSON, or None when there is no such file.

    Raises:
        DescriptorError: it can't be read; the message names it.
    """
    try:
        # A pipe may never end, and a device neither; nobody waits for one who writes to it.
        with open(folder / file, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise DescriptorError(f"{file} is no regular file; put one there")
            data = opened.read(MOST_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DescriptorError(f"{file} can't be read: {error.strerror or error}") from None
    if len(data) > MOST_FILE:
        raise DescriptorError(f"{file} is over the limit of {MOST_FILE:,} bytes")
    try:
        document = read_document(data, Any)
    except ValueError as error:
        raise DescriptorError(f"{file} can't be read as JSON: {error}") from None
    if document is None:
        raise DescriptorError(f"{file} is null, and expected is a list or an object of entries by id; an empty one is {{}}")
    return document


def entries(document: Any, file: str, wrong: list[Wrong]) -> dict[str, list[Any]]:
    """Return a file's entries by id, in its order; a list of more than one for an id that stands there several times.

    Args:
        document: the file's JSON.
        file: its name.
        wrong: entries without a proper id are added to it.

    Raises:
        DescriptorError: it is neither a list nor an object.
    """
    found = dict[str, list[Any]]()
    id_field, word = FILES[file]
    inside = unwrapped(document, word)
    if isinstance(inside, dict):
        for name, entry in inside.items():
            named = entry.get(id_field, name) if isinstance(entry, dict) else name
            if named != name:
                said = shortened(repr(named), _MOST_TOLD)
                wrong.append(Wrong(file, name, f"it stands under {name!r} and says {said} - at `$.{id_field}`"))
            else:
                found[name] = [entry]
        return found
    if not isinstance(inside, list):
        raise DescriptorError(f"{file} is neither a list nor an object of entries by id")
    for index, entry in enumerate(inside):
        name = entry.get(id_field) if isinstance(entry, dict) else None
        if isinstance(name, str) and name:
            found.setdefault(name, []).append(entry)
        else:
            wrong.append(Wrong(file, f"#{index + 1}", f"it has no {id_field} - at `$[{index}].{id_field}`"))
    return found


def unwrapped(document: Any, word: str) -> Any:
    """Return what stands under the file's own word, or the document itself; one tool may have that word as its id."""
    if isinstance(document, dict) and isinstance(inside := document.get(word), (dict, list)):
        if isinstance(inside, list) and word != "sources":
            return inside
        if isinstance(inside, list) and all(isinstance(each, dict) and "tool_id" in each for each in inside):
            return inside
        if isinstance(inside, dict) and all(isinstance(each, (dict, list)) for each in inside.values()) and len(document) == 1:
            return inside
    return document


T = TypeVar("T")

_MOST_REASON = 400
_KINDS = {list: "an array", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_OWN_FIELDS = frozenset(RecordedTool.__struct_fields__) - {"meta", "sources"}


class Found(NamedTuple):
    """The content of a folder's files.

    Attributes:
        records: those that can be used.
        wrong: entries that can't, with the reason.
        ignored: fields of entries that nothing reads.
    """

    records: list[Record]
    wrong: list[Wrong]
    ignored: list[Wrong]


def read_folder(folder: Path) -> Found:
    """Read all files that are in a folder.

    Raises:
        ConfigurationError: none of them is there.
    """
    found = Found([], [], [])
    files = {file: read for file in FILES if (read := _entries(folder, file, found)) is not None}
    if not files and not found.wrong:
        raise ConfigurationError(f"there is none of {REGISTRY}, {SOURCES} and {GROUPS} in {str(folder)!r}")
    unreadable = SOURCES in {each.file for each in found.wrong if not each.id}
    sources = files.pop(SOURCES, {})
    makers: Mapping[str, Callable[[str, Any, Found], Record]] = {
        REGISTRY: lambda name, entry, found: _tool(name, entry, sources.get(name), found, unreadable=unreadable),
        GROUPS: lambda name, entry, found: check_group(_made(ToolGroup, {"group_id": name, **_object(entry)}, GROUPS, name, found, "$")),
        RUNTIMES: lambda name, entry, found: check_runtime(
            _made(BackendRuntime, {"backend_runtime": name, **_object(entry)}, RUNTIMES, name, found, "$")
        ),
    }
    for file, by_id in files.items():
        for name, each in by_id.items():
            if len(each) > 1:
                found.wrong.append(Wrong(file, name, f"it stands there {len(each)} times"))
            else:
                _take(found, file, name, partial(makers[file], name, each[0], found))
        if file == REGISTRY:
            lost = sources.keys() - by_id.keys()
            found.wrong.extend(Wrong(SOURCES, name, f"{REGISTRY} has no tool of this id") for name in sorted(lost))
    return found


def _entries(folder: Path, file: str, found: Found) -> dict[str, list[Any]] | None:
    try:
        document = load(folder, file)
        return None if document is None else entries(document, file, found.wrong)
    except DescriptorError as error:
        found.wrong.append(Wrong(file, "", str(error).removesuffix(" - at `$`")))
        return None


def _take(found: Found, file: str, name: str, make: Callable[[], Record]) -> None:
    try:
        found.records.append(make())
    except DescriptorError as error:
        message = str(error).removesuffix(f" - at `{error.path}`")
        place, path = _in_files(error.path) if file == REGISTRY else (file, error.path)
        found.wrong.append(Wrong(place, name, f"{one_line(message, _MOST_REASON)} - at `{path}`"))


def _in_files(path: str) -> tuple[str, str]:
    """Return in which file a field of a tool's record stands, and where in its entry."""
    first = re.split(r"[.\[]", path.removeprefix("$."), maxsplit=1)[0]
    if first == "sources":
        return SOURCES, path
    if first == "meta":
        return REGISTRY, path.replace("$.meta", "$", 1)
    return REGISTRY, path if first in {"$", OWN} else path.replace("$", f"$.{OWN}", 1)


def _tool(name: str, entry: Any, listed: list[Any] | None, found: Found, *, unreadable: bool) -> RecordedTool:
    fields = _object(entry)
    own = _object(fields.pop(OWN, {}), f"$.{OWN}")
    meta = _made(ToolMeta, {"tool_id": name, **fields}, REGISTRY, name, found, "$.meta")
    if listed is None:
        missing = 'there is no source of it; expected a list, like [{"type": "local", "host_dir": "…"}]'
        raise DescriptorError("the file can't be read" if unreadable else missing, path="$.sources")
    extra = {key: value for key, value in own.items() if key not in _OWN_FIELDS}
    found.ignored.extend(Wrong(REGISTRY, name, f"$.{OWN}.{key}") for key in extra)
    sources = [_source(each, f"$.sources[{index}]", name, found) for index, each in enumerate(_sources(listed))]
    given = {"made_by": IMPORTED, **{key: value for key, value in own.items() if key in _OWN_FIELDS}}
    rest = _made(RecordedTool, {"meta": {"tool_id": name}, **given}, REGISTRY, name, found, "$")
    return check_recorded(msgspec.structs.replace(rest, meta=meta, sources=tuple(sources)))


def _sources(listed: list[Any]) -> list[Any]:
    """Return a tool's sources from what stands for it: lists, single ones, and routes, which have them in ``sources``."""
    found: list[Any] = []
    for each in listed:
        if isinstance(each, list):
            found.extend(each)
        elif isinstance(each, dict) and "sources" in each:
            inside = each["sources"]
            found.extend(inside if isinstance(inside, list) else [inside])
        else:
            found.append(each)
    return found


def _source(entry: Any, path: str, name: str, found: Found) -> ToolSource:
    fields = {key: value for key, value in _object(entry, path).items() if key not in ROUTE_FIELDS}
    own = _object(fields.pop(OWN, {}), f"{path}.{OWN}")
    return _made(ToolSource, {**fields, **own}, SOURCES, name, found, path)


def _made(type_: type[T], fields: dict[str, Any], file: str, name: str, found: Found, path: str) -> T:
    found.ignored.extend(Wrong(file, name, each.path) for each in unknown_fields(fields, type_, path))
    try:
        return msgspec.convert(fields, type_)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        where = where.rstrip("`")
        raise DescriptorError(f"{message}{_expected(type_, where, message)}", path=f"{path}{where}") from None


def _expected(type_: type[Any], where: str, message: str) -> str:
    """Return what may stand in a field of fixed values, which the message does not say."""
    hint = typing.get_type_hints(type_).get(where.removeprefix("."))
    if not message.startswith("Invalid enum value") or typing.get_origin(hint) is not typing.Literal:
        return ""
    return f", expected one of {', '.join(map(repr, typing.get_args(hint)))}"


def _object(value: Any, path: str = "$") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DescriptorError(f"Expected an object, got {_KINDS.get(type(value), 'null')}", path=path)
    return dict(value)


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
    documents: dict[str, dict[str, Any]] = {
        REGISTRY: {name: _writing_tool(tool) for name, tool in records.tools.items()},
        SOURCES: {name: [_writing_source(each) for each in tool.sources] for name, tool in records.tools.items()},
        GROUPS: {name: msgspec.to_builtins(group) for name, group in records.groups.items()},
    }
    if records.runtimes:
        documents[RUNTIMES] = {name: msgspec.structs.asdict(each) for name, each in records.runtimes.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, by_id in documents.items():
            replace(folder / file, _document(folder, file, by_id), 0o644)
    except OSError as error:
        raise ConfigurationError(f"can't write to {str(folder)!r}: {error.strerror or error}") from None
    return list(documents)


def _writing_tool(tool: RecordedTool) -> dict[str, Any]:
    own = {name: value for name, value in msgspec.to_builtins(tool).items() if name in _OWN_FIELDS - {"made_by"}}
    if tool.made_by != IMPORTED:
        own["made_by"] = tool.made_by
    return _with_own(msgspec.to_builtins(tool.meta), own)


def _writing_source(source: ToolSource) -> dict[str, Any]:
    entry = {name: getattr(source, name) for name in SOURCE_FIELDS}
    return _with_own(entry, {name: value for name, value in msgspec.to_builtins(source).items() if name not in entry})


def _with_own(entry: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {**entry, OWN: own} if own else entry


def _document(folder: Path, file: str, by_id: Mapping[str, Any]) -> bytes:
    """Return a file's new text, in the form that it has, with entries that say the same as they stand there."""
    try:
        before = load(folder, file)
        if before is not None:
            return _in_form((folder / file).read_bytes(), before, file, by_id)
    except (DescriptorError, *DECODE_ERRORS):
        pass
    return _joined(by_id, {}, _INDENT, 1) + b"\n"


def _in_form(old: bytes, before: Any, file: str, by_id: Mapping[str, Any]) -> bytes:
    indent = found[1] if (found := _FIRST_INDENT.match(old)) else _INDENT
    id_field, word = FILES[file]
    inside = unwrapped(before, word)
    text: bytes | msgspec.Raw = old if inside is before else msgspec.json.decode(old, type=dict[str, msgspec.Raw])[word]
    if as_list := isinstance(inside, list):
        by_id = {name: {"tool_id": name, "sources": each} if isinstance(each, list) else each for name, each in by_id.items()}
        ids: list[Any] = [each.get(id_field) if isinstance(each, dict) else None for each in inside]
        parts = list(zip(ids, msgspec.json.decode(text, type=list[msgspec.Raw]), strict=True))
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
