"""Read and write files below one folder, and nowhere else.

A path is opened component by component, each relative to the opened folder before it and never through a link, so that no ``..``,
no link and no concurrent change leads out. A file with a second name is left alone, since the other name may lie outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from toolbus.bus.values.results import ErrorType, ToolError

Network = Literal["none", "packages", "all"]
"""``none``: no command reaches a network; ``packages``: uv does, while it installs wheels; ``all``: every command does."""


class WorkspaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a workspace; sizes are in bytes, times in seconds.

    Attributes:
        network: which commands reach the network.
        confined: whether commands run in namespaces of their own, which see the workspace, the system's programs and nothing else.
            A machine whose kernel does not let us refuses commands then. Say False only where the worker is confined itself, such
            as in a container of its own: its commands may then read and write what the worker can.
        file_bytes: of one file.
        total_bytes: of all files of the task.
        entries: files and folders of the task.
        memory: of all processes of a command together.
        processes: of a command at once; its threads count where the worker is not the superuser.
        seconds: most that a command may run; the call says how long it wants.
        output: most of a command's output that is kept.
        background: commands that run in the background at once.
        docker: whether the task may have containers; they see the workspace and nothing else of the machine.
        containers: of the task at once.
    """

    network: Network = "none"
    confined: bool = True
    file_bytes: int = 256 << 20
    total_bytes: int = 4 << 30
    entries: int = 200_000
    memory: int = 2 << 30
    processes: int = 256
    seconds: float = 600.0
    output: int = 64_000
    background: int = 4
    docker: bool = True
    containers: int = 2


_MOST_PATH = 1_000
_MOST_FOLDERS = 40
# Errors quote so much of a path.
_SHOWN = 200

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_TEMPORARY = ".toolbus-"
# More than any limit.
_ANY = 1 << 62


class Folder:
    """The folder of a task's files."""

    def __init__(self, path: str, options: WorkspaceOptions) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 - os functions only need a string
        self._options = options

    def write(self, path: str, data: bytes, *, append: bool = False) -> int:
        """Write a file, with the folders on its way; return its size then. Readers see the old text or the new one.

        Raises:
            ToolError: the path leads out or is no regular file, or a limit is reached.
        """
        *folders, name = _named(path)
        with self._opened(folders, path, make=True) as folder, _told(path):
            old = _status(name, folder, path)
            size = len(data) + (old.st_size if append and old else 0)
            if size > self._options.file_bytes:
                raise _full(f"{_short(path)!r} would have {size:,} bytes; {self._options.file_bytes:,} are the most that a file may have")
            self._check_room(len(data) if append or not old else size - old.st_size, new=not old)
            if append and old:
                _append(name, folder, path, data)
            else:
                _replace(name, folder, data, stat.S_IMODE(old.st_mode) & 0o777 if old else 0o644)
        return size

    def read(self, path: str, most: int) -> tuple[bytes, int]:
        """Return at most ``most`` bytes of a file, with the file's size.

        Raises:
            ToolError: the path leads out, or is no regular file.
        """
        *folders, name = _named(path)
        with self._opened(folders, path) as folder, _told(path):
            descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                status = _checked(os.fstat(descriptor), path)
                return file.read(most), status.st_size

    def make(self, path: str) -> str:
        """Make a folder, unless it is there; return its full path.

        Raises:
            ToolError: the path leads out, or is no folder.
        """
        parts = split(path)
        self._check_room(0, new=True)
        with self._opened(parts, path, make=True):
            return "/".join([self.path, *parts])

    def folder(self, path: str) -> str:
        """Return the full path of a folder that is there.

        Raises:
            ToolError: the path leads out, or is no folder.
        """
        parts = split(path)
        with self._opened(parts, path):
            return "/".join([self.path, *parts])

    def has(self, path: str) -> bool:
        """Return whether there is a regular file; False for every other path."""
        try:
            *folders, name = _named(path)
            with self._opened(folders, path) as folder:
                return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except (ToolError, OSError):
            return False

    def _check_room(self, more: int, *, new: bool) -> None:
        used, entries = usage(self.path, most_entries=self._options.entries)
        if used == _ANY:
            raise _full("a folder of the workspace can't be looked into (too deep, or without permission): remove it first")
        if more > 0 and used + more > self._options.total_bytes:
            raise _full(f"the workspace holds {used:,} bytes of at most {self._options.total_bytes:,}; remove files first")
        if new and entries >= self._options.entries:
            raise _full(f"the workspace holds {entries:,} files and folders, which is the most; remove some first")

    @contextlib.contextmanager
    def _opened(self, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        """Provide a folder's descriptor."""
        with _told(path):
            here = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                with _told(path):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o755, dir_fd=here)
                    inner = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)


def usage(path: str, *, most_bytes: int = _ANY, most_entries: int = _ANY) -> tuple[int, int]:
    """Return the bytes on disk and the entries below a folder; what vanishes meanwhile is left out. Links are not followed.

    A folder that can't be looked into counts as more than any limit, since anything may be in it. Nothing is counted beyond the limits, so
    that a folder of millions of files takes no longer than one that is just full.
    """
    used = entries = 0
    pending = [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                for each in found:
                    entries += 1
                    if used > most_bytes or entries > most_entries:
                        return used, entries
                    if each.is_dir(follow_symlinks=False):
                        pending.append(each.path)
                    with contextlib.suppress(FileNotFoundError):
                        used += each.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            if error.errno in {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP}:
                return _ANY, _ANY
    return used, entries


def split(path: str) -> list[str]:
    """Return the components of a path that is relative to the workspace.

    Raises:
        ToolError: it is absolute, goes up, is too long, or no file can have it.
    """
    if len(path) > _MOST_PATH or path.count("/") > _MOST_FOLDERS:
        raise invalid(f"the path is too long: at most {_MOST_PATH} characters and {_MOST_FOLDERS} folders", "bad_path")
    if path.startswith(("/", "~")):
        raise ToolError(
            f"{_short(path)!r} is no path in the workspace: give it relative to it, like src/main.py", type="forbidden", code="outside"
        )
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolError(f"{_short(path)!r} goes up with '..': give the path from the workspace on", type="forbidden", code="outside")
    if "\0" in path or any("\ud800" <= each <= "\udfff" for each in path):
        raise invalid("the path holds a character that no file name can have: leave it out", "bad_path")
    return parts


def _named(path: str) -> list[str]:
    parts = split(path)
    if not parts:
        raise invalid("the path names the workspace itself: name a file in it", "is_folder")
    return parts


def _status(name: str, folder: int, path: str) -> os.stat_result | None:
    try:
        return _checked(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
    except FileNotFoundError:
        return None


def _checked(status: os.stat_result, path: str) -> os.stat_result:
    """Return the status of a regular file with one name."""
    if not stat.S_ISREG(status.st_mode):
        raise _of_system(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.ELOOP, path)
    if status.st_nlink > 1:
        message = f"{_short(path)!r} is the same file as another (a hard link): remove it first, or use another path"
        raise ToolError(message, type="forbidden", code="hard_link")
    return status


def _append(name: str, folder: int, path: str, data: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | _FILE, dir_fd=folder)
    with os.fdopen(descriptor, "ab") as file:
        # It may have been replaced since it was looked at.
        _checked(os.fstat(descriptor), path)
        file.write(data)


def _replace(name: str, folder: int, data: bytes, mode: int) -> None:
    """Write a new file, and give it the name at once; whatever had the name is let go, never written to."""
    temporary = _TEMPORARY + secrets.token_hex(8)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn the system's errors into errors for a model."""
    try:
        yield
    except OSError as error:
        raise _of_system(error.errno, path, error.strerror or "") from None


_NO_FILE = ("{path} is a link, a device or a pipe: only regular files are read and written; remove it, or use another path", "not_a_file")
_NO_FOLDER = ("on the way to {path} is something that is no folder (a file, or a link, which is not followed)", "not_a_folder")
# The errors for a model by the system's numbers: the text, the code and the type.
_OF_SYSTEM: Mapping[int | None, tuple[str, str, ErrorType]] = {
    errno.ELOOP: (*_NO_FILE, "forbidden"),
    errno.ENOTDIR: (*_NO_FOLDER, "forbidden"),
    errno.ENOENT: ("there is no {path} in the workspace", "no_file", "not_found"),
    errno.ENXIO: ("there is no {path} in the workspace", "no_file", "not_found"),
    errno.EISDIR: ("{path} is a folder: name a file in it", "is_folder", "invalid_arguments"),
    errno.ENAMETOOLONG: ("a name in the path is too long for any file", "bad_path", "invalid_arguments"),
    errno.ENOSPC: ("{path} can't be written: the disk is full", "workspace_full", "tool_error"),
    errno.EDQUOT: ("{path} can't be written: the disk is full", "workspace_full", "tool_error"),
}


def _of_system(number: int | None, path: str, said: str = "") -> ToolError:
    text, code, kind = _OF_SYSTEM.get(number, ("{path} can't be opened: {said}", "io_error", "tool_error"))
    return ToolError(text.format(path=repr(_short(path)), said=said), type=kind, code=code)


def invalid(message: str, code: str) -> ToolError:
    """Return the error of a call whose arguments are wrong."""
    return ToolError(message, type="invalid_arguments", code=code)


def _full(message: str) -> ToolError:
    return ToolError(message, code="workspace_full")


def _short(path: str) -> str:
    return path if len(path) <= _SHOWN else f"{path[: _SHOWN - 1]}…"
