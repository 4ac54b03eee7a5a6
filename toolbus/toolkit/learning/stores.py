"""Open stores of executions: one protocol, two formats, and copies from one to the other."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from toolbus.bus import telemetry
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.files import locked
from toolbus.toolkit.learning.records import MAX_RECORD, Execution, OnBad, RecordError, decode, encode

MAX_RECORDS = 1_000_000
FORMAT = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS executions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    episode TEXT NOT NULL,
    position INTEGER NOT NULL,
    action TEXT NOT NULL,
    tool TEXT NOT NULL,
    outcome TEXT NOT NULL,
    ms REAL NOT NULL,
    at REAL NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_edge ON executions (action, tool, at);
CREATE INDEX IF NOT EXISTS by_episode ON executions (episode, position);
CREATE INDEX IF NOT EXISTS by_time ON executions (at);
"""
_INSERT = """
INSERT OR IGNORE INTO executions (id, episode, position, action, tool, outcome, ms, at, document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_BATCH = 1000
# Seconds to wait for other writing processes.
_LOCKED_SECONDS = 10.0


class SqliteStore:
    """A store in SQLite with a write-ahead log, so that readers and one writer do not wait for each other.

    The columns are for SQL queries; ``document`` holds the record and is the only column that is read back.

    Args:
        max_records: most records that are kept; the oldest beyond are deleted.

    Raises:
        ConfigurationError: the file is no such database, or from a newer release.
    """

    def __init__(self, path: str | Path, *, max_records: int = MAX_RECORDS) -> None:
        if max_records < 1:
            raise ConfigurationError("max_records of a log of executions must be at least 1")
        self.path = Path(path)
        self._max_records = max_records
        self._lock = threading.Lock()
        with self._errors():
            self._database = sqlite3.connect(self.path, timeout=_LOCKED_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._prepare_patiently()
        except BaseException:
            self._database.close()
            raise

    def _prepare_patiently(self) -> None:
        """Prepare the database and retry while it is busy, since switching to a write-ahead log does not wait for other processes."""
        limit = time.monotonic() + _LOCKED_SECONDS
        while True:
            try:
                self._prepare()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                    raise
                time.sleep(random.uniform(0.005, 0.02))  # noqa: S311 - jitter
            else:
                return

    def _prepare(self) -> None:
        found = self._database.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT:
            raise ConfigurationError(f"{self.path} has format {found}; this release reads format {FORMAT}")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        if found < FORMAT:
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version = {FORMAT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def append(self, executions: Iterable[Execution]) -> int:
        """Add executions in one transaction and return how many were new; existing ids stay as they are.

        Raises:
            RecordError: an execution has a field out of bounds; nothing is written.
            ConfigurationError: the database can't be written.
        """
        rows = [
            (each.id, each.episode, each.position, each.action, each.tool, each.outcome, each.ms, each.at, encode(each).decode())
            for each in executions
        ]
        if not rows:
            return 0
        with self._lock, self._errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                added = self._database.executemany(_INSERT, rows).rowcount
                newest = self._database.execute("SELECT max(number) FROM executions").fetchone()[0]
                self._database.execute("DELETE FROM executions WHERE number <= ?", (newest - self._max_records,))
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
        return added

    def read(self, on_bad: OnBad | None = None) -> Iterator[Execution]:
        """Yield every execution, in the order in which they were added.

        Raises:
            RecordError: a row can't be read and there is no ``on_bad``.
            ConfigurationError: the database can't be read.
        """
        last = 0
        while True:
            with self._lock, self._errors():
                rows = self._database.execute(
                    "SELECT number, CAST(document AS BLOB) FROM executions WHERE number > ? ORDER BY number LIMIT ?", (last, _BATCH)
                ).fetchall()
            if not rows:
                return
            for last, document in rows:
                try:
                    execution = decode(document, f"{self.path}: row {last}")
                except RecordError as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
                else:
                    yield execution

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigurationError(f"{self.path} is not a usable log of executions: {error}") from None


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


class ExecutionStore(Protocol):
    """A log of executions, in the order in which they were added. Any thread may call its methods, one at a time."""

    path: Path

    def append(self, executions: Iterable[Execution]) -> int:
        """Add executions, all or none of them, and return how many were new.

        Raises:
            RecordError: an execution has a field out of bounds.
            ConfigurationError: the store can't be written.
        """

    def read(self, on_bad: OnBad | None = None) -> Iterator[Execution]:
        """Yield every execution, oldest first.

        Raises:
            RecordError: a record can't be read and there is no ``on_bad``.
        """

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_store(path: str | Path, *, must_exist: bool = False) -> ExecutionStore:
    """Open the store at a path: ``.jsonl`` for JSON lines; ``.db``, ``.sqlite`` or ``.sqlite3`` for SQLite.

    Raises:
        ConfigurationError: the suffix is another, or the file does not exist but must.
    """
    path = Path(path)
    if must_exist and not path.is_file():
        raise ConfigurationError(f"there is no log of executions at {path}")
    if path.suffix == ".jsonl":
        return JsonlStore(path)
    if path.suffix in {".db", ".sqlite", ".sqlite3"}:
        return SqliteStore(path)
    raise ConfigurationError(f"{path.name!r}: a log of executions ends in .jsonl, .db, .sqlite or .sqlite3")


def copy(source: ExecutionStore, target: ExecutionStore, on_bad: OnBad | None = None) -> int:
    """Add all of one store to another and return how many records were new there.

    Everything is read before anything is written, so a bad record leaves the target unchanged.

    Raises:
        RecordError: a record can't be read and there is no ``on_bad``.
    """
    found = [*source.read(on_bad)]
    known = {execution.id for execution in target.read(lambda _: None)}
    return target.append([execution for execution in found if execution.id not in known])
