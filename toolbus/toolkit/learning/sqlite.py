"""Store executions in SQLite, for analysis with SQL and for many records."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from toolbus.results import ConfigurationError
from toolbus.toolkit.learning.records import Execution, OnBad, RecordError, decode, encode

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
