"""Read and write the registry's items of the platform, and say what code an approval is of: digests of folders, and lock files."""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.canonical import own_digest
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError, DescriptorError
from toolbus.platform.checks import check_group, check_recorded, check_runtime
from toolbus.platform.records import GROUP_KEY, PENDING_KEY, RECORD_KEY, RUNTIME_KEY, BackendRuntime, RecordedTool

Record = RecordedTool | ToolGroup | BackendRuntime

TYPES: Mapping[str, type[Record]] = {
    RECORD_KEY: RecordedTool,
    PENDING_KEY: RecordedTool,
    GROUP_KEY: ToolGroup,
    RUNTIME_KEY: BackendRuntime,
}
"""The type of the items whose keys begin with each prefix."""

PREFIXES = tuple(TYPES)
"""Begin the keys of the platform's items."""


def is_platform_key(key: str) -> bool:
    """Return whether an item of this key is one of the platform's."""
    return key.startswith(PREFIXES)


def key_of(record: Record, *, pending: bool = False) -> str:
    """Return the key under which a record is kept."""
    if isinstance(record, RecordedTool):
        return f"{PENDING_KEY if pending else RECORD_KEY}{record.tool_id}"
    return f"{GROUP_KEY}{record.group_id}" if isinstance(record, ToolGroup) else f"{RUNTIME_KEY}{record.backend_runtime}"


def read(key: str, document: bytes) -> Record:
    """Return the record that a stored document is, checked.

    Raises:
        DescriptorError: it can't be used; the message begins with the key, and ends with the field.
    """
    try:
        return _checked(msgspec.json.decode(document, type=TYPES[parted(key)[0]]), key)
    except DECODE_ERRORS as error:
        message, _, where = str(error).partition(" - at `")
        raise DescriptorError(f"{key}: {message}", path=where.rstrip("`") or "$") from None
    except DescriptorError as error:
        raise told(key, error) from None


def encode(record: Record) -> bytes:
    """Return the document of a record, with the keys of its schemas in their order.

    Raises:
        DescriptorError: it is not to be stored; the message begins with the key, and ends with the field.
    """
    key = key_of(record)
    try:
        _checked(record, key)
        return msgspec.json.encode(record)
    except DescriptorError as error:
        raise told(key, error) from None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise DescriptorError(f"{key} can't be stored: {error}") from None


def digest_of(tool: RecordedTool) -> str:
    """Return the digest of all that a person approves: the descriptor, the sources, how it runs, and its code's digest."""
    return own_digest(tool)


def told(entry: str, error: DescriptorError) -> DescriptorError:
    """Return an error with the entry that it is about at its beginning."""
    message = str(error).removesuffix(f" - at `{error.path}`")
    return DescriptorError(f"{entry}: {message}", path=error.path)


def parted(key: str) -> tuple[str, str]:
    """Return the prefix and the id of a key.

    Raises:
        DescriptorError: it is none of the platform's.
    """
    for prefix in PREFIXES:
        if key.startswith(prefix):
            return prefix, key.removeprefix(prefix)
    raise DescriptorError(f"{key!r} is none of {', '.join(f'{each}ID' for each in PREFIXES)}")


def _checked(record: Record, key: str) -> Record:
    name = parted(key)[1]
    if isinstance(record, ToolGroup):
        # A group is called by its key.
        return check_group(msgspec.structs.replace(record, group_id=name))
    if isinstance(record, RecordedTool):
        _check_id(record.tool_id, name, "$.meta.tool_id")
        return check_recorded(record)
    _check_id(record.backend_runtime, name, "$.backend_runtime")
    return check_runtime(record)


def _check_id(found: str, expected: str, path: str) -> None:
    if found != expected:
        raise DescriptorError(f"it is of {found!r}, and its key is of {expected!r}", path=path)


MOST_FILES = 10_000
"""Most files and folders of a tool's code."""

MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of a tool's code."""

# Made anew from the rest, on each machine.
_IGNORED = frozenset({".venv", "__pycache__"})
_IGNORED_ENDS = (".pyc",)
_CHUNK = 1 << 20


def digest_of_folder(path: str | os.PathLike[str]) -> str:
    """Return the digest of a folder's files: their names, content, and whether they may be executed; in hexadecimal.

    ``.venv``, ``__pycache__`` and ``*.pyc`` are left out. It reads files, so it is nothing for an event loop.

    Raises:
        ConfigurationError: it is no folder, can't be read, is too large, or holds something else than files and folders, such as a link.
    """
    root = Path(path).expanduser()
    total = hashlib.sha256()
    left = MOST_BYTES
    try:
        for name, file in _files(root):
            mode, size, content = _digest_of_file(file, left)
            left -= size
            # Each part has its length or a fixed one, so that no two folders look the same.
            encoded = os.fsencode(name)
            total.update(b"%d %d %d " % (bool(mode & 0o100), len(encoded), size) + encoded + content)
    except OSError as error:
        raise ConfigurationError(f"{root} can't be read as the code of a tool: {error.strerror or error}") from None
    return total.hexdigest()


def files_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of a folder's files that its digest is of, from there and sorted; raises as ``digest_of_folder`` does."""
    root = Path(path).expanduser()
    try:
        return [name for name, _ in _files(root)]
    except OSError as error:
        raise ConfigurationError(f"{root} can't be read as the code of a tool: {error.strerror or error}") from None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder with their names from there, in one order on every machine."""
    if root.is_symlink() or not root.is_dir():
        raise ConfigurationError(f"{root} is no folder")
    found: list[tuple[str, Path]] = []
    folders, entries = [("", root)], 0
    while folders:
        before, folder = folders.pop()
        with os.scandir(folder) as listed:
            for entry in listed:
                if entry.name in _IGNORED or entry.name.endswith(_IGNORED_ENDS):
                    continue
                entries += 1
                if entries > MOST_FILES:
                    raise ConfigurationError(f"{root} has more than {MOST_FILES:,} files, which is too much for the code of a tool")
                name = f"{before}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append((f"{name}/", Path(entry.path)))
                elif entry.is_file(follow_symlinks=False):
                    found.append((name, Path(entry.path)))
                else:
                    raise ConfigurationError(f"{entry.path} is a link or a special file; the code of a tool has files and folders only")
    return iter(sorted(found))


def _digest_of_file(path: Path, most: int) -> tuple[int, int, bytes]:
    """Return the mode, size and digest of a file of at most ``most`` bytes."""
    # It may have become something else meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigurationError(f"{path} is a special file; the code of a tool has files and folders only")
        content, size = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK):
            content.update(chunk)
            size += len(chunk)
            if size > most:
                raise ConfigurationError(f"the files beside {path} have more than {MOST_BYTES:,} bytes, too much for the code of a tool")
    return mode, size, content.digest()


def read_written(key: str, document: object) -> Record:
    """Return the record in a decoded document, checked; the id may be left out, and unknown fields are refused.

    Raises:
        DescriptorError: it is not to be stored; the message begins with the key, and ends with the field.
    """
    prefix, name = parted(key)
    if not isinstance(document, dict):
        raise DescriptorError(f"{key}: it is no JSON object")
    unknown = next(unknown_fields(document, TYPES[prefix]), None)
    if unknown is not None:
        raise told(key, unknown)
    if prefix == GROUP_KEY and document.get("group_id", name) != name:
        raise DescriptorError(f"{key}: it is of {document['group_id']!r}, and its key is of {name!r}", path="$.group_id")
    if prefix == RUNTIME_KEY:
        document = {"backend_runtime": name, **document}
    elif prefix != GROUP_KEY and isinstance(document.get("meta"), dict):
        document = {**document, "meta": {"tool_id": name, **document["meta"]}}
    return read(key, msgspec.json.encode(document))


def unknown_fields(document: object, type_: Any, path: str = "$") -> Iterator[DescriptorError]:
    """Yield an error for each field that a type does not have."""
    struct = _struct_in(type_)
    if struct is None:
        return
    if isinstance(document, (list, tuple)):
        for index, each in enumerate(document):
            yield from unknown_fields(each, struct, f"{path}[{index}]")
    elif isinstance(document, dict):
        hints = typing.get_type_hints(struct)
        for name, value in document.items():
            if name in hints:
                yield from unknown_fields(value, hints[name], f"{path}.{name}")
            else:
                advice = did_you_mean(difflib.get_close_matches(str(name), hints, n=1))
                yield DescriptorError(f"there is no field {str(name)!r}{advice}", path=f"{path}.{name}")


def _struct_in(type_: Any) -> Any:
    """Return the struct that a type is or holds; None for types of free content."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_
    if typing.get_origin(type_) in {tuple, list, types.UnionType}:
        return next(filter(None, map(_struct_in, typing.get_args(type_))), None)
    return None


# Of a lock file, or of a project file.
_MOST_LOCK_BYTES = 16 * 1024 * 1024

_REMEDY = "let it depend on released packages of an index alone, and copy what it needs from elsewhere into its own folder"


def check_locked(path: str | os.PathLike[str]) -> None:
    """Refuse a project with code that can change although its folder does not; one without ``uv.lock`` has nothing to check.

    Each package must come from an index, with the hashes of its files, or be the project itself.

    Raises:
        ConfigurationError: it names the package and its source, or says why the file can't be read.
    """
    folder = Path(path).expanduser()
    lock = _read(folder / "uv.lock")
    if lock is None:
        return
    reason = next(chain(_of_lock(lock), _of_project(_read(folder / "pyproject.toml") or {})), "")
    if reason:
        raise ConfigurationError(f"code that is approved must not change afterwards, and {reason}; {_REMEDY}")


def _of_lock(lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield why packages of a lock file are not fixed."""
    for package in _tables(lock.get("package")):
        name, source = package.get("name"), package.get("source")
        if source in ({"virtual": "."}, {"editable": "."}):
            continue
        index = source.get("registry") if isinstance(source, dict) and len(source) == 1 else None
        if not isinstance(index, str) or not index.startswith(("https://", "http://")):
            yield f"its package {name!r} comes from {_shown(source)}, not from an index"
        files = [*_tables(package.get("wheels")), *_tables([package.get("sdist")])]
        if not files or not all(each.get("hash") for each in files):
            yield f"its package {name!r} has files without a hash in uv.lock"


def _of_project(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield why what a project is built with, which no lock file has, is not from an index."""
    built = project.get("build-system")
    requires = built.get("requires") if isinstance(built, dict) else None
    for each in requires if isinstance(requires, list) else ():
        if "@" in str(each):
            yield f"it is built with {str(each)[:200]!r}, which is not from an index"
    tool = project.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    sources = uv.get("sources") if isinstance(uv, dict) else None
    for name, given in sources.items() if isinstance(sources, dict) else ():
        for source in _tables(given if isinstance(given, list) else [given]):
            if "index" not in source:
                yield f"tool.uv.sources takes {name!r} from {_shown(source)}, not from an index"


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _shown(source: object) -> str:
    if not isinstance(source, dict) or not source:
        return "nowhere"
    return ", ".join(f"{kind} {str(where)[:200]!r}" for kind, where in source.items())


def _read(path: Path) -> dict[str, Any] | None:
    """Return a file of TOML; None when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_LOCK_BYTES + 1)
        if len(data) > _MOST_LOCK_BYTES:
            raise ConfigurationError(f"{path} has more than {_MOST_LOCK_BYTES:,} bytes")
        return tomllib.loads(data.decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from None
