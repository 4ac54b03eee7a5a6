"""Digests of folders: the code of a tool, as it was approved."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from toolbus.results import ConfigurationError

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
