"""Read records from a folder's files, entry by entry: what is wrong with one keeps no other from being read."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from toolbus.client.tools.groups import ToolGroup
from toolbus.display import one_line
from toolbus.platform.checks import check_group, check_recorded, check_runtime
from toolbus.platform.documents import Record
from toolbus.platform.files.entries import Entries, Wrong, entries, load
from toolbus.platform.files.names import GROUPS, IMPORTED, OWN, REGISTRY, ROUTE_FIELDS, RUNTIMES, SOURCES
from toolbus.platform.records import BackendRuntime, RecordedTool, ToolMeta, ToolSource
from toolbus.platform.written import unknown_fields
from toolbus.results import ConfigurationError, DescriptorError

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
    tools = _entries(folder, REGISTRY, "tool_id", "tools", found)
    sources = _entries(folder, SOURCES, "tool_id", "sources", found)
    groups = _entries(folder, GROUPS, "group_id", "groups", found)
    runtimes = _entries(folder, RUNTIMES, "backend_runtime", "backend_runtimes", found)
    if tools is sources is groups is runtimes is None and not found.wrong:
        raise ConfigurationError(f"there is none of {REGISTRY}, {SOURCES} and {GROUPS} in {str(folder)!r}")
    unreadable = SOURCES in {each.file for each in found.wrong if not each.id}
    known = {} if sources is None else sources.by_id
    for name, entry in _single(tools, REGISTRY, found):
        _take(found, REGISTRY, name, partial(_tool, name, entry, known.get(name), found, unreadable=unreadable))
    if tools is not None:
        lost = known.keys() - tools.by_id.keys()
        found.wrong.extend(Wrong(SOURCES, name, f"{REGISTRY} has no tool of this id") for name in sorted(lost))
    for name, entry in _single(groups, GROUPS, found):
        _take(found, GROUPS, name, partial(_group, name, entry, found))
    for name, entry in _single(runtimes, RUNTIMES, found):
        _take(found, RUNTIMES, name, partial(_runtime, name, entry, found))
    return found


def _entries(folder: Path, file: str, id_field: str, word: str, found: Found) -> Entries | None:
    try:
        document = load(folder, file)
        read = None if document is None else entries(document, file, id_field, word)
    except DescriptorError as error:
        found.wrong.append(Wrong(file, "", str(error).removesuffix(" - at `$`")))
        return None
    if read is not None:
        found.wrong.extend(read.wrong)
    return read


def _single(read: Entries | None, file: str, found: Found) -> Iterable[tuple[str, Any]]:
    """Yield the entries whose id stands in the file once."""
    for name, each in ({} if read is None else read.by_id).items():
        if len(each) > 1:
            found.wrong.append(Wrong(file, name, f"it stands there {len(each)} times"))
        else:
            yield name, each[0]


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
        why = (
            "the file can't be read"
            if unreadable
            else 'there is no source of it; expected a list, like [{"type": "local", "host_dir": "…"}]'
        )
        raise DescriptorError(why, path="$.sources")
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


def _group(name: str, entry: Any, found: Found) -> ToolGroup:
    return check_group(_made(ToolGroup, {"group_id": name, **_object(entry)}, GROUPS, name, found, "$"))


def _runtime(name: str, entry: Any, found: Found) -> BackendRuntime:
    return check_runtime(_made(BackendRuntime, {"backend_runtime": name, **_object(entry)}, RUNTIMES, name, found, "$"))


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
