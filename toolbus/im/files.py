"""Files that survive a crash at any moment: replaced as a whole, or grown line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write a file anew: after a crash it has the old content or the new one.

    Raises:
        OSError: it can't be written.
    """
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync_folder(path.parent)


def append(path: Path, line: bytes) -> None:
    """Add a line, which is on the disk when this returns.

    Raises:
        OSError: it can't be written.
    """
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def mend(path: Path) -> bool:
    """Cut off a last line that was not written to its end; return whether there was one.

    Raises:
        OSError: the file can't be read or written.
    """
    if not path.exists():
        path.touch(0o600)
        _sync_folder(path.parent)
        return False
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        kept = _after_last_line(file.fileno(), size)
        if kept == size:
            return False
        file.truncate(kept)
        file.flush()
        os.fsync(file.fileno())
        return True


def lines(path: Path, most: int) -> Iterator[bytes]:
    """Yield the last lines of a file, within so many bytes of its end.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        if size > most:
            file.readline()
        yield from file


def _after_last_line(file: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - 65_536)
        found = os.pread(file, end - start, start).rfind(b"\n")
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
