"""Open stores of executions: one protocol, two formats, and copies from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from toolbus.results import ConfigurationError
from toolbus.toolkit.learning.jsonl import JsonlStore
from toolbus.toolkit.learning.records import Execution, OnBad
from toolbus.toolkit.learning.sqlite import SqliteStore


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
