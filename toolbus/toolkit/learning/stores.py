"""Records of executions, and the stores that keep them: JSON lines and SQLite."""

from __future__ import annotations

import errno
import math
import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import msgspec
from msgspec import Meta

from toolbus.bus import telemetry
from toolbus.bus.support.files import append, generations, lock, replace, shift
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ERROR_KINDS, ConfigurationError, ToolResult

VERSION = 1
MAX_RECORD = 262_144
MAX_SHOWN = 1000

Outcome = Literal["success", "failure", "cancelled", "refused", "unavailable"]

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Propensity = Annotated[float, Meta(gt=0, le=1)]
Shown = Annotated[dict[Name, Propensity], Meta(max_length=MAX_SHOWN)]


class Execution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a tool within an episode: one user's request, from the first action to the last.

    Attributes:
        episode: id of the episode; its executions are ordered by ``position``, from 0.
        action: action in which the tool was called.
        tool: the tool's own name.
        outcome: ``success`` and ``failure`` say something about the tool; ``cancelled``, ``refused`` (by a person) and ``unavailable``
            do not.
        ms: milliseconds that the call took for its caller.
        at: end of the call, in seconds since 1970.
        shown: the tools that might have been shown to the model in this action, each with its probability (propensity, above 0); empty
            when unknown.
        next_shown: the same for the actions that may follow this one.
        revision: revision of the scores that chose what was shown; empty for static scores.
        query: the user's sentence that began the episode.
        target: id of the graph's tool or group by which the action called the tool; empty when the recorder knew no graph.
        id: id of the record; a store keeps one record for an id.
    """

    episode: Name
    position: Annotated[int, Meta(ge=0, le=1_000_000)]
    action: Name
    tool: Name
    outcome: Outcome
    at: Annotated[float, Meta(ge=0, le=1e11)]
    ms: Annotated[float, Meta(ge=0)] = 0.0
    shown: Shown = {}
    next_shown: Shown = {}
    revision: Annotated[str, Meta(max_length=128)] = ""
    query: Annotated[str, Meta(max_length=4096)] = ""
    target: Annotated[str, Meta(max_length=256)] = ""
    id: Name = msgspec.field(default_factory=new_id)
    version: Annotated[int, Meta(ge=1)] = msgspec.field(default=VERSION, name="v")

    @property
    def conclusive(self) -> bool:
        """True if the outcome says something about the tool."""
        return self.outcome in {"success", "failure"}


class RecordError(ConfigurationError):
    """A record can't be read or written; ``place`` names its location (``log.jsonl:17``)."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{place}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.place, self.problem)


OnBad = Callable[[RecordError], object]
"""Called with each record that can't be read, which is then left out."""


class _Versioned(msgspec.Struct):
    """The field that a record of any version has."""

    v: int


_decoder = msgspec.json.Decoder(Execution)
_versions = msgspec.json.Decoder(_Versioned)


def encode(execution: Execution) -> bytes:
    """Return a record as one line of JSON, without a line break.

    Raises:
        RecordError: a field is out of bounds.
    """
    # Fields with their default value are left out, except for the version.
    fields = msgspec.to_builtins(execution)
    document = msgspec.json.encode({"v": execution.version, "id": execution.id, **fields})
    decode(document, f"execution {execution.id[:64]!r}")
    return document


def decode(document: bytes, place: str) -> Execution:
    """Return a record from its JSON; errors name ``place``.

    Raises:
        RecordError: it is not JSON, too large, of another version, or a field is missing or out of bounds.
    """
    if len(document) > MAX_RECORD:
        raise RecordError(place, f"the record has {len(document)} bytes; at most {MAX_RECORD} are allowed")
    try:
        version = _versions.decode(document).v
        if version != VERSION:
            raise RecordError(place, f"the record is of version {version}; this release reads version {VERSION}")
        return _decoder.decode(document)
    except DECODE_ERRORS as error:
        raise RecordError(place, f"no execution: {error}") from None


def outcome_of(result: ToolResult) -> Outcome:
    """Return what the result of a call says about its tool."""
    if result.error is None:
        return "success"
    if result.error.type == "not_found" and result.error.origin == "tool":
        return "failure"
    return ERROR_KINDS[result.error.type].outcome


@contextmanager
def locked(path: Path, *, reading: bool = False, patient: bool = True) -> Iterator[None]:
    """Hold a lock on a file or folder, through a lock file beside it, against other threads and processes.

    With ``reading``, go on without the lock where the folder is read-only, since no process can write there.

    Raises:
        ConfigurationError: the folder does not exist or can't be written; or another one holds the lock, unless ``patient``.
    """
    name = path.with_name(f".{path.name}.lock")
    try:
        file = lock(name, within=math.inf if patient else 0.0)
    except BlockingIOError:
        raise ConfigurationError(f"another process works in {path.parent} at the moment; try again when it is done") from None
    except OSError as error:
        if reading and error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            yield
            return
        raise ConfigurationError(f"{name} can't be locked: {error.strerror or error}") from None
    try:
        yield
    finally:
        os.close(file)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file so that readers, even after a crash, find either the old or the new content.

    Raises:
        ConfigurationError: the file can't be written.
    """
    try:
        replace(path, content)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written: {error.strerror or error}") from None


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


class ExecutionStore(ABC):
    """A log of executions, in the order in which they were added. Any thread may call its methods, one at a time."""

    path: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
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
            ConfigurationError: the store can't be read.
        """
        for found in self._records():
            if isinstance(found, Execution):
                yield found
            elif on_bad is None:
                raise found
            else:
                on_bad(found)

    @abstractmethod
    def _records(self) -> Iterator[Execution | RecordError]:
        """Yield every execution, oldest first, or the error why its record can't be read."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class SqliteStore(ExecutionStore):
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
        # Leaving the database commits, or takes back what a failure has left undone.
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            added = self._database.executemany(_INSERT, rows).rowcount
            newest = self._database.execute("SELECT max(number) FROM executions").fetchone()[0]
            self._database.execute("DELETE FROM executions WHERE number <= ?", (newest - self._max_records,))
        return added

    def _records(self) -> Iterator[Execution | RecordError]:
        last = 0
        while True:
            with self._lock, self._errors():
                rows = self._database.execute(
                    "SELECT number, CAST(document AS BLOB) FROM executions WHERE number > ? ORDER BY number LIMIT ?", (last, _BATCH)
                ).fetchall()
            if not rows:
                return
            for last, document in rows:
                yield _decoded(document, f"{self.path}: row {last}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigurationError(f"{self.path} is not a usable log of executions: {error}") from None


MAX_BYTES = 67_108_864
FILES = 8


class JsonlStore(ExecutionStore):
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
                if self.path.exists() and self.path.stat().st_size >= self._max_bytes:
                    shift(self.path, self._files)
                torn = append(self.path, b"".join(lines))
        except OSError as error:
            raise ConfigurationError(f"{self.path} can't be written: {error.strerror or error}") from None
        if torn:
            telemetry.log.warning("executions.torn_line", file=str(self.path), bytes=torn)
        return len(lines)

    def _records(self) -> Iterator[Execution | RecordError]:
        seen: set[str] = set()
        # A file may be renamed between listing and opening, so keep writers away until all files are open.
        with locked(self.path, reading=True):
            names = [path for path in generations(self.path, self._files) if path.exists()]
            try:
                opened = [path.open("rb") for path in names]
            except OSError as error:
                raise ConfigurationError(f"{self.path} can't be read: {error.strerror or error}") from None
        try:
            for name, file in zip(names, opened, strict=True):
                for found in _lines(name, file):
                    if isinstance(found, RecordError) or found.id not in seen:
                        yield found
                    if isinstance(found, Execution):
                        seen.add(found.id)
        finally:
            for file in opened:
                file.close()


def _lines(name: Path, file: BinaryIO) -> Iterator[Execution | RecordError]:
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
