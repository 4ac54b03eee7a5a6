"""Write files that survive crashes: replaced as a whole, or grown by whole lines; and hold locks."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

try:
    import fcntl
except ImportError:  # systems without flock: there the user must run one process at a time
    fcntl = None  # type: ignore[assignment]

_LOOK_AGAIN = 0.01


def replace(path: Path, content: bytes, mode: int | None = None, *, lasting: bool = True) -> None:
    """Replace a file so that readers, even after a crash, find either the old or the new content.

    A crash may leave a file beside it, whose name is a dot, the file's name, another dot and a random word.

    Args:
        path: of the file.
        content: what it has from now on.
        mode: its permissions; those of any new file when left out.
        lasting: wait until it is on the disk; False where only processes that run now read it.

    Raises:
        OSError: the file can't be written.
    """
    written = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(written, "xb", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)) as file:
            if mode is not None:
                written.chmod(mode)
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    if lasting:
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


def lock(path: Path, *, within: float = math.inf) -> int:
    """Hold a lock file, alone among threads and processes, until the descriptor that is returned is closed.

    Raises:
        BlockingIOError: another one has held it for all of ``within`` seconds.
        OSError: the file can't be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + within
    try:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if within == math.inf else fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
            time.sleep(_LOOK_AGAIN)
    except BaseException:
        os.close(file)
        raise
    return file


@contextlib.contextmanager
def locked(path: Path, *, within: float = math.inf) -> Iterator[None]:
    """Hold a lock file, as ``lock`` does."""
    file = lock(path, within=within)
    try:
        yield
    finally:
        os.close(file)


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
