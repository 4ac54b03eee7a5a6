"""Read files under one root folder, and no others.

A path is opened component by component, each relative to the opened folder before it and never through a link, so that
no ``..``, no link and no concurrent change leads out of the root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import BinaryIO, NamedTuple

from toolbus import ToolError

MAX_PATH = 1_000
MAX_DEPTH = 40
MAX_ENTRIES = 20_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Entry(NamedTuple):
    """An entry of a folder; ``kind`` is ``file``, ``folder``, or the name of another kind, which can't be opened."""

    path: str
    kind: str
    size: int
    modified: float
    identity: tuple[int, int, int]


class Root:
    """A folder whose files may be read."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - os functions only need a string

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
        """Open a regular file; provide it with its status.

        Raises:
            ToolError: the path is invalid, leads out of the root, or is no readable file.
        """
        *folders, name = split(path) or [""]
        if not name:
            raise ToolError("the path names the root folder, not a file; list it instead", type="invalid_arguments", code="is_folder")
        with self._folder(folders, path) as folder, _translated_errors(path):
            kind = stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if kind != stat.S_IFREG:
                raise _not_a_file(path, kind)
            # The file may have been replaced in between, so the opened one is checked again.
            file = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
            with file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise _not_a_file(path, stat.S_IFMT(status.st_mode))
                yield file, status

    def entries(self, path: str, most: int) -> tuple[list[Entry], int]:
        """Return the first entries of a folder by name, folders first, and their total number; large folders are read in part.

        Raises:
            ToolError: the path is invalid, leads out of the root, or is no readable folder.
        """
        parts = split(path)
        with self._folder(parts, path) as folder, _translated_errors(path):
            found = list(islice(_scan(folder, "/".join(parts)), MAX_ENTRIES))
        found.sort(key=lambda entry: (entry.kind != "folder", entry.path))
        return found[:most], len(found)

    def walk(self, most: int) -> Iterator[Entry]:
        """Yield the files below the root in the order of their paths, without names that begin with a dot."""
        left = most
        pending = [""]
        while pending:
            here = pending.pop()
            try:
                with self._folder(split(here), here) as folder:
                    found = sorted(islice(_scan(folder, here), MAX_ENTRIES))
            except (ToolError, OSError):
                if not here:
                    raise
                continue
            visible = [entry for entry in found if not entry.path.rpartition("/")[2].startswith(".")]
            if here.count("/") < MAX_DEPTH - 2:
                pending.extend(entry.path for entry in reversed(visible) if entry.kind == "folder")
            for entry in visible:
                if entry.kind == "file":
                    if not left:
                        return
                    left -= 1
                    yield entry

    @contextlib.contextmanager
    def _folder(self, parts: list[str], path: str) -> Iterator[int]:
        with _translated_errors(path):
            try:
                folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                message = f"the service's root folder can't be opened ({error.strerror}); an operator must fix it"
                raise ToolError(message, type="unavailable", code="no_root", retryable=True) from None
            try:
                for part in parts:
                    mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
                    if stat.S_ISLNK(mode):
                        raise _not_a_file(path, stat.S_IFLNK)
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                    os.close(folder)
                    folder = inner
                yield folder
            finally:
                os.close(folder)


def split(path: str) -> list[str]:
    """Return the components of a relative path.

    Raises:
        ToolError: the path is absolute, goes up, is too long, or is invalid.
    """
    if len(path) > MAX_PATH or path.count("/") > MAX_DEPTH:
        raise _wrong(f"the path is too long; at most {MAX_PATH} characters and {MAX_DEPTH} folders are allowed", "bad_path")
    if path.startswith(("/", "~")):
        message = "the path must be relative to the root folder, e.g. notes/today.md; list the root with an empty path"
        raise ToolError(message, type="forbidden", code="outside")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolError("the path may not go up with '..'; name the file from the root folder", type="forbidden", code="outside")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise _wrong("the path holds a character that no file name has; remove it", "bad_path")
    return parts


def date(seconds: float) -> str:
    """Return a time (seconds since 1970) as an ISO date; empty when it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def _scan(folder: int, prefix: str) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for each in found:
            try:
                status = each.stat(follow_symlinks=False)
                each.name.encode()
            except (OSError, UnicodeEncodeError):
                # The entry is gone, or has a name that no caller could write.
                continue
            mode = stat.S_IFMT(status.st_mode)
            kind = "file" if mode == stat.S_IFREG else "folder" if mode == stat.S_IFDIR else _KINDS.get(mode, "something else")
            path = f"{prefix}/{each.name}" if prefix else each.name
            yield Entry(path, kind, status.st_size, status.st_mtime, (status.st_mtime_ns, status.st_size, status.st_ino))


@contextlib.contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Turn the system's errors into errors of a tool."""
    shown = path if len(path) <= 200 else f"{path[:199]}…"
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_a_file(path, stat.S_IFLNK) from None
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO}:
            message = f"there is no {shown!r} under the root folder; list its folder to see what there is"
            raise ToolError(message, type="not_found", code="no_file") from None
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise ToolError(f"{shown!r} may not be read; choose another file", type="forbidden", code="no_access") from None
        if error.errno == errno.ENAMETOOLONG:
            raise _wrong("a name in the path is too long for any file", "bad_path") from None
        raise ToolError(f"{shown!r} can't be read: {error.strerror}", code="io_error", retryable=True) from None


def _not_a_file(path: str, kind: int) -> ToolError:
    shown = path if len(path) <= 200 else f"{path[:199]}…"
    if kind == stat.S_IFDIR:
        return _wrong(f"{shown!r} is a folder; list it, or name a file in it", "is_folder")
    kind_name = _KINDS.get(kind, "no regular file")
    hint = "on the way to it is a symbolic link, or it is one; links are not followed" if kind == stat.S_IFLNK else f"it is {kind_name}"
    return ToolError(f"{shown!r} can't be opened: {hint}; choose another file", type="forbidden", code="not_a_file")


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
