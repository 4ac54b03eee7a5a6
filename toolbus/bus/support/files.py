"""Write files that survive crashes: replaced as a whole, or grown by whole lines."""

from __future__ import annotations

import os
import secrets
from itertools import pairwise
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Replace a file so that readers, even after a crash, find either the old or the new content.

    A crash may leave a file beside it, whose name is a dot, the file's name, another dot and a random word.

    Raises:
        OSError: the file can't be written.
    """
    written = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with written.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def append(path: Path, lines: bytes) -> int:
    """Add whole lines, which are on the disk when this returns; a write that fails halfway is undone.

    A last line that an earlier crash has cut off is removed first.

    Returns:
        The number of bytes of that line; 0 without one.

    Raises:
        OSError: the file can't be read or written.
    """
    is_new = not path.exists()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
    try:
        end = os.lseek(file, 0, os.SEEK_END)
        whole = _end_of_lines(file, end)
        if whole < end:
            os.ftruncate(file, whole)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, whole)
            raise
    finally:
        os.close(file)
    if is_new:
        _sync_folder(path.parent)
    return end - whole


def generations(path: Path, most: int) -> list[Path]:
    """Return the files that a growing one is kept in, the oldest first: ``path.N`` down to ``path.1``, and itself."""
    return [*(Path(f"{path}.{number}") for number in range(most - 1, 0, -1)), path]


def shift(path: Path, most: int) -> None:
    """Make room for a new file at a path: what is there becomes ``path.1``, and so on, and the oldest is deleted.

    Raises:
        OSError: they can't be renamed.
    """
    for older, newer in pairwise(generations(path, most)):
        if newer.exists():
            newer.replace(older)
    if most == 1:
        path.unlink()


def _end_of_lines(file: int, end: int) -> int:
    """Return the offset at which the last complete line ends."""
    while end > 0:
        start = max(0, end - 65_536)
        os.lseek(file, start, os.SEEK_SET)
        found = os.read(file, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
