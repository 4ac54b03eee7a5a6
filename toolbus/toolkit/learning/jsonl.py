"""Store executions as JSON lines: readable by any tool, safe against crashes and concurrent writers, and bounded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from toolbus import telemetry
from toolbus.results import ConfigurationError
from toolbus.toolkit.learning.files import locked
from toolbus.toolkit.learning.records import MAX_RECORD, Execution, OnBad, RecordError, decode, encode

MAX_BYTES = 67_108_864
FILES = 8


class JsonlStore:
    """Appends to ``path``; a full file becomes ``path.1``, ``path.1`` becomes ``path.2``, and the oldest is deleted.

    Several processes may append to one path, because each batch holds a lock beside it. A line that a crash cut off is removed by
    the next writer, and skipped by readers with a warning. An id that stands in the log twice is read once.

    Args:
        max_bytes: size in bytes at which a file is full.
        files: most files that are kept.

    Raises:
        ConfigurationError: a limit is too small.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = MAX_BYTES, files: int = FILES) -> None:
        if max_bytes < 1 or files < 1:
            raise ConfigurationError("max_bytes and files of a log of executions must be at least 1")
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._files = files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def append(self, executions: Iterable[Execution]) -> int:
        """Add executions in one write and return their number; ids that are already in the log count, but are read once.

        Raises:
            RecordError: an execution has a field out of bounds; nothing is written.
            ConfigurationError: the file can't be written.
        """
        lines = [encode(execution) + b"\n" for execution in executions]
        if not lines:
            return 0
        try:
            with locked(self.path):
                self._rotate()
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
                try:
                    self._write(file, b"".join(lines))
                finally:
                    os.close(file)
        except OSError as error:
            raise ConfigurationError(f"{self.path} can't be written: {error.strerror or error}") from None
        return len(lines)

    def read(self, on_bad: OnBad | None = None) -> Iterator[Execution]:
        """Yield every execution, oldest first.

        Raises:
            RecordError: a line can't be read and there is no ``on_bad``.
            ConfigurationError: a file can't be read.
        """
        seen: set[str] = set()
        # A file may be renamed between listing and opening, so keep writers away until all files are open.
        with locked(self.path, reading=True):
            names = [path for path in self._names() if path.exists()]
            try:
                opened = [path.open("rb") for path in names]
            except OSError as error:
                raise ConfigurationError(f"{self.path} can't be read: {error.strerror or error}") from None
        try:
            for name, file in zip(names, opened, strict=True):
                for found in _records(name, file):
                    if isinstance(found, RecordError):
                        if on_bad is None:
                            raise found
                        on_bad(found)
                    elif found.id not in seen:
                        seen.add(found.id)
                        yield found
        finally:
            for file in opened:
                file.close()

    def _names(self) -> list[Path]:
        """Return the files, oldest first."""
        return [*(Path(f"{self.path}.{number}") for number in range(self._files - 1, 0, -1)), self.path]

    def _rotate(self) -> None:
        if not self.path.exists() or self.path.stat().st_size < self._max_bytes:
            return
        names = self._names()
        for older, newer in pairwise(names):
            if newer.exists():
                newer.replace(older)
        if self._files == 1:
            self.path.unlink()

    def _write(self, file: int, text: bytes) -> None:
        """Append ``text`` after the last complete line; undo a write that fails halfway."""
        end = os.lseek(file, 0, os.SEEK_END)
        whole = _whole(file, end)
        if whole < end:
            telemetry.log.warning("executions.torn_line", file=str(self.path), bytes=end - whole)
            os.ftruncate(file, whole)
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, whole)
            raise


def _whole(file: int, end: int) -> int:
    """Return the offset at which the last complete line ends."""
    position = end
    while position > 0:
        start = max(0, position - 65_536)
        os.lseek(file, start, os.SEEK_SET)
        found = os.read(file, position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def _records(name: Path, file: BinaryIO) -> Iterator[Execution | RecordError]:
    """Yield the record of each line, or the error why it can't be read; a last line that was cut off yields nothing."""
    number = 0
    while line := file.readline(MAX_RECORD + 2):
        number += 1
        if line.endswith(b"\n"):
            yield _decoded(line[:-1], f"{name}:{number}")
        elif len(line) < MAX_RECORD + 2:
            telemetry.log.warning("executions.torn_line", file=str(name), line=number)
            return  # another process may still be writing it
        else:
            while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                line = file.readline(MAX_RECORD)
            yield RecordError(f"{name}:{number}", f"the record is longer than {MAX_RECORD} bytes")


def _decoded(line: bytes, place: str) -> Execution | RecordError:
    try:
        return decode(line, place)
    except RecordError as error:
        return error
