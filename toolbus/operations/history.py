"""The kept history of calls: the places where it can be kept, what is found there, and what keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.support.files import append, generations, lock, replace, shift
from toolbus.bus.support.waiting import at_most
from toolbus.bus.telemetry.metrics import Exposition
from toolbus.bus.telemetry.output import lines_lost
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ConfigurationError
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.bus.worker.process.health import Probed

FAILED = frozenset({"failed", "cancelled", "retried", "lost", "dead"})
"""Outcomes of attempts that did not succeed."""


class Wanted(NamedTuple):
    """The attempts that are looked for.

    Attributes:
        since: when they ended at the earliest; seconds since 1970.
        equal: fields of a ``RecentCall`` and the values that they have.
        call: the beginning of their calls' ids.
        failed: only those that did not succeed.
        limit: at most so many, the newest ones.
    """

    since: float = 0.0
    equal: Mapping[str, str] = {}
    call: str = ""
    failed: bool = False
    limit: int = 50

    def takes(self, call: RecentCall) -> bool:
        """Return whether an attempt is wanted."""
        return (
            call.ended >= self.since
            and call.id.startswith(self.call)
            and not (self.failed and call.outcome not in FAILED)
            and all(getattr(call, name) == value for name, value in self.equal.items())
        )


class Found(NamedTuple):
    """The attempts that were wanted, the oldest first, and how many of that time are not in the history."""

    calls: list[RecentCall]
    missing: int


class Position(msgspec.Struct, frozen=True):
    """The end of what has been kept.

    Attributes:
        entry: that of the last record in the server's stream; empty before the first.
        began: when the first record was kept, seconds of server time since 1970.
        numbers: of the last record of each worker, those heard of last at the end.
    """

    entry: str = ""
    began: float = 0.0
    numbers: dict[str, int] = {}

    def after(self, calls: Sequence[RecentCall], entry: str) -> tuple[Position, int]:
        """Return the position after further records, and how many attempts between them and this one were not told."""
        numbers, missing = dict(self.numbers), 0
        began = self.began or (calls[0].ended if calls else 0.0)
        for call in calls:
            teller = (call.by or call.instance)[:_MOST_NAME]
            before = numbers.pop(teller, None)
            if before is None:
                # Of a worker that began before the history did, earlier ones were never to be kept.
                before = 0 if call.since > began else call.number - 1
            missing += max(0, call.number - before - 1)
            numbers[teller] = call.number
        for teller in list(numbers)[: len(numbers) - _MOST_TELLERS]:
            del numbers[teller]
        return Position(entry, began, numbers), missing


_MOST_TELLERS, _MOST_NAME = 1_000, 256


class StoreFailed(Exception):
    """Nothing can be written now; it is tried again."""


class Store(Protocol):
    """A place where attempts are kept. Its methods block."""

    def position(self) -> Position:
        """Return how far it goes."""

    def write(self, calls: Sequence[RecentCall], missing: int, position: Position) -> None:
        """Add attempts, and that some were not told.

        Raises:
            StoreFailed: nothing can be written now.
        """

    def prune(self, before: float) -> None:
        """Remove what ended before a time, and the oldest of what is too much.

        Raises:
            StoreFailed: nothing can be written now.
        """

    def close(self) -> None:
        """Let go of it."""


def _lines(calls: Iterable[RecentCall], missing: int) -> bytes:
    told = [call.document() for call in calls]
    if missing and told:
        told.append({"missing": missing, "ended": told[-1]["ended"]})
    return b"".join(msgspec.json.encode(each) + b"\n" for each in told)


@contextlib.contextmanager
def _failing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        # A system's error may name a file beside it, under a new name each time.
        raise StoreFailed(f"{path} can't be written: {getattr(error, 'strerror', None) or error}") from None


class _Nowhere:
    """A place that keeps nothing here, so that each start begins with the oldest record that the server holds."""

    def position(self) -> Position:
        return Position()

    def prune(self, before: float) -> None:
        pass

    def close(self) -> None:
        pass


class _Output(_Nowhere):
    """Writes JSON lines to standard output."""

    def write(self, calls: Sequence[RecentCall], missing: int, position: Position) -> None:
        sys.stdout.buffer.write(_lines(calls, missing))
        sys.stdout.buffer.flush()


class _Collector(_Nowhere):
    """Sends log records by OTLP over HTTP, with the endpoint and the headers of the ``OTEL_EXPORTER_OTLP_*`` variables."""

    def __init__(self) -> None:
        if not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")):
            raise ConfigurationError("otlp needs a collector: set OTEL_EXPORTER_OTLP_ENDPOINT")
        try:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter  # noqa: PLC0415 - an extra
            from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415
            from opentelemetry.sdk._logs.export import (  # noqa: PLC0415
                InMemoryLogRecordExporter,
                LogRecordExportResult,
                SimpleLogRecordProcessor,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"otlp needs {error.name}: pip install 'toolbus[otel]'") from None
        # The records of one write, whose export is to succeed or fail as a whole.
        self._gathered = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        name = os.environ.get("OTEL_SERVICE_NAME", "toolbus-history")
        provider = LoggerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(self._gathered))
        self._logger = provider.get_logger(telemetry.NAME)
        self._exporter: Any = OTLPLogExporter()
        self._done = LogRecordExportResult.SUCCESS

    def write(self, calls: Sequence[RecentCall], missing: int, position: Position) -> None:
        self._gathered.clear()
        for call in calls:
            fields = {name: value for name, value in call.document().items() if value != ""}
            self._logger.emit(timestamp=int(call.ended * 1e9), body="call.ended", event_name="call.ended", attributes=fields)
        if missing:
            self._logger.emit(body="call.missing", event_name="call.missing", attributes={"missing": missing})
        if self._exporter.export(self._gathered.get_finished_logs()) is not self._done:
            raise StoreFailed("the collector did not take the records")

    def close(self) -> None:
        self._exporter.shutdown()


@contextlib.contextmanager
def _of(path: Path) -> Iterator[None]:
    """Say whose error one of the system or of SQLite is."""
    try:
        yield
    except (OSError, sqlite3.Error, *DECODE_ERRORS) as error:
        raise ConfigurationError(f"{path} is no history that can be used: {error}") from None


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def _be_file(path: Path) -> None:
    """Refuse a folder, and a pipe, which would be waited for.

    Raises:
        ConfigurationError: something else than a file is there.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is no history that can be used: it is no regular file")


def _alone(path: Path) -> int:
    """Return the file descriptor of a lock beside a file, which no other process holds."""
    with _of(path):
        _be_file(path)
        try:
            return lock(_beside(path, "lock"), within=0.0)
        except BlockingIOError:
            raise ConfigurationError(f"another process keeps the history in {path}") from None


_FILES = 8


class _Lines:
    """JSON lines in ``path``; a full file becomes ``path.1``, and so on, and the oldest is deleted.

    The position stands in a file beside it, written after the lines: after a crash in between the last of them come again.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._lock = _alone(path)
        self._path = path
        self._most = size // _FILES
        self._kept = _beside(path, "position")
        # The last entry of the lines that were added last.
        self._added = ""

    def position(self) -> Position:
        with _of(self._kept):
            return msgspec.json.decode(self._kept.read_bytes(), type=Position) if self._kept.exists() else Position()

    def write(self, calls: Sequence[RecentCall], missing: int, position: Position) -> None:
        with _failing(self._path):
            # Lines whose position could not be written are there already.
            if (lines := _lines(calls, missing)) and position.entry != self._added:
                append(self._path, lines)
                self._added = position.entry
            replace(self._kept, msgspec.json.encode(position), 0o600)
            if self._path.exists() and self._path.stat().st_size >= self._most:
                shift(self._path, _FILES)

    def prune(self, before: float) -> None:
        with _failing(self._path):
            for path in generations(self._path, _FILES):
                if path.exists() and path.stat().st_mtime < before:
                    path.unlink()
            # A file that fills slowly would keep its first lines for long after the others have gone.
            with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
                first = next(_read(file), None)
                if first is not None and first.ended < before:
                    shift(self._path, _FILES)

    def close(self) -> None:
        os.close(self._lock)


class _Line(RecentCall):
    """A line of the file: an attempt, or how many are missing."""

    id: str = ""
    missing: int = 0


_decoder = msgspec.json.Decoder(_Line)


def _read(file: BinaryIO) -> Iterator[_Line]:
    """Yield the lines of a file, without those that can't be read."""
    for line in file:
        with contextlib.suppress(*DECODE_ERRORS):
            yield _decoder.decode(line)


def _find_lines(path: Path, wanted: Wanted) -> Found:
    calls: deque[RecentCall] = deque(maxlen=wanted.limit)
    missing, last = 0, ""
    with contextlib.ExitStack() as stack:
        opened: dict[int, BinaryIO] = {}
        # From the newest on: one that is renamed meanwhile is met a second time, and none is missed.
        for each in reversed(generations(path, _FILES)):
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(each.open("rb"))
                opened.setdefault(os.fstat(file.fileno()).st_ino, file)
        if not opened and not _beside(path, "position").exists():
            raise FileNotFoundError("there is no such file")
        for lines in reversed(opened.values()):
            if os.fstat(lines.fileno()).st_mtime < wanted.since:
                continue
            for line in _read(lines):
                if line.ended >= wanted.since:
                    missing += line.missing
                if not line.missing and line.entry != last and wanted.takes(line):
                    calls.append(msgspec.convert(line, RecentCall, from_attributes=True))
                last = line.entry
    return Found(list(calls), missing)


_FORMAT = 1
_COLUMNS = {
    name: {str: "TEXT", float: "REAL", int: "INTEGER"}.get(type(default := getattr(RecentCall("x"), name)), "TEXT")
    for name in RecentCall.__struct_fields__
    if name not in {"number", "since"}
}
_SCHEMA = f"""
BEGIN;
CREATE TABLE calls ({", ".join(f'"{name}" {kind} NOT NULL' for name, kind in _COLUMNS.items())}, UNIQUE (entry));
CREATE INDEX calls_by_end ON calls (ended);
CREATE TABLE missing (ended REAL NOT NULL, missing INTEGER NOT NULL);
CREATE TABLE position (id INTEGER PRIMARY KEY CHECK (id = 1), document TEXT NOT NULL);
PRAGMA user_version = {_FORMAT};
COMMIT;
"""
_INSERT = f"INSERT OR IGNORE INTO calls VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"  # noqa: S608 - names of our own
_PATIENCE = 10.0


def _is_empty(path: Path, database: sqlite3.Connection) -> bool:
    """Return whether nothing is in a database; otherwise a history of this release is.

    In a table with other columns, SQLite would take the names of those that are missing for texts.

    Raises:
        ConfigurationError: it is of another release, or of something else.
    """
    [found] = database.execute("PRAGMA user_version").fetchone()
    if found > _FORMAT:
        raise ConfigurationError(f"{path} has format {found}; this release reads format {_FORMAT}")
    if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return True
    if [column for _, column, *_ in database.execute("PRAGMA table_info(calls)")] != [*_COLUMNS]:
        raise ConfigurationError(f"{path} is a database of something else than a history, or of another release; name another file")
    return False


class _Table:
    """A table of a SQLite database, whose freed pages are used again, so that the file stays about as large."""

    def __init__(self, path: Path, size: int) -> None:
        self._lock = _alone(path)
        self._path = path
        self._size = size
        with contextlib.ExitStack() as undone:
            undone.callback(os.close, self._lock)
            with _of(path):
                # SQLite would let everybody read it.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                self._database = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
                undone.callback(self._database.close)
                is_new = _is_empty(path, self._database)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
                # On a disk that is full, one that is there already can be opened.
                if is_new:
                    self._database.executescript(_SCHEMA)
            undone.pop_all()

    def position(self) -> Position:
        with _of(self._path):
            found = self._database.execute("SELECT document FROM position").fetchone()
            return msgspec.json.decode(found[0], type=Position) if found else Position()

    def write(self, calls: Sequence[RecentCall], missing: int, position: Position) -> None:
        with self._change() as database:
            database.executemany(_INSERT, [{name: getattr(each, name) for name in _COLUMNS} for each in calls])
            if missing and calls:
                database.execute("INSERT INTO missing VALUES (?, ?)", (calls[-1].ended, missing))
            database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (msgspec.json.encode(position).decode(),))

    def prune(self, before: float) -> None:
        with self._change() as database:
            for table in ("calls", "missing"):
                database.execute(f"DELETE FROM {table} WHERE ended < ?", (before,))  # noqa: S608 - names of our own
        while True:
            with self._change() as database:
                if self._used() <= self._size:
                    return
                oldest = "SELECT min(rowid) + (max(rowid) - min(rowid)) / 20 FROM calls"
                if database.execute(f"DELETE FROM calls WHERE rowid <= ({oldest})").rowcount < 1:  # noqa: S608
                    return

    def _used(self) -> int:
        pages, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with _failing(self._path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database

    def close(self) -> None:
        self._database.close()
        os.close(self._lock)


def _find_rows(path: Path, wanted: Wanted) -> Found:
    where = "".join(f' AND "{name}" = ?' for name in wanted.equal)
    columns = ", ".join(f'"{name}"' for name in _COLUMNS)
    query = f"SELECT {columns} FROM calls WHERE ended >= ?{where} ORDER BY ended DESC, rowid DESC"  # noqa: S608 - names of our own
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", timeout=_PATIENCE, uri=True)) as database:
        calls: list[RecentCall] = []
        if _is_empty(path, database):
            # Its keeper is about to make the tables.
            return Found(calls, 0)
        for row in database.execute(query, (wanted.since, *wanted.equal.values())):
            call = msgspec.convert(dict(zip(_COLUMNS, row, strict=True)), RecentCall)
            if wanted.takes(call):
                calls.append(call)
            if len(calls) == wanted.limit:
                break
        [missing] = database.execute("SELECT total(missing) FROM missing WHERE ended >= ?", (wanted.since,)).fetchone()
    return Found(calls[::-1], int(missing))


class _Kind(NamedTuple):
    """A kind of place.

    Attributes:
        suffixes: of the files that are one.
        words: that name one which is no file.
        opened: opens it to write, with the bytes that it may have.
        find: looks for attempts in it; None where nothing can be read.
    """

    suffixes: tuple[str, ...]
    words: tuple[str, ...]
    opened: Callable[[Path, int], Store]
    find: Callable[[Path, Wanted], Found] | None


KINDS = (
    _Kind((".jsonl",), (), _Lines, _find_lines),
    _Kind((".db", ".sqlite", ".sqlite3"), (), _Table, _find_rows),
    _Kind((), ("-",), lambda path, size: _Output(), None),
    _Kind((), ("otlp",), lambda path, size: _Collector(), None),
)
"""All kinds of places."""


def _kind(place: str) -> _Kind:
    for kind in KINDS:
        if place in kind.words or Path(place).suffix in kind.suffixes:
            return kind
    raise ConfigurationError(
        f"a history is a file that ends in .jsonl, .db, .sqlite or .sqlite3, `-` (standard output) or otlp, not {place!r}"
    )


def open_store(place: str, size: int) -> Store:
    """Open the place where a history is to be kept.

    Args:
        place: see ``KINDS``.
        size: the bytes that it may have, about.

    Raises:
        ConfigurationError: it is none, or can't be used.
    """
    return _kind(place).opened(Path(place), size)


def find(place: str, wanted: Wanted) -> Found:
    """Return the attempts that are wanted from a history, also while it is written.

    Raises:
        ConfigurationError: it is none, or can't be read.
    """
    look = _kind(place).find
    if look is None:
        raise ConfigurationError(f"nothing can be read from {place!r}: name the file of a history")
    with _of(Path(place)):
        _be_file(Path(place))
        return look(Path(place), wanted)


# -- keeping ------------------------------------------------------------------------------------------

_EVERY = 1.0
# So many at once are followed by more.
_MANY = 500
_PRUNED_EVERY = 60.0
_AGAIN = 1.0
# A worker that tells of nothing else would have told of a recent call by then.
_SILENCE = 5.0


class Keeper:
    """Writes the attempts that end into a store, until it is stopped.

    Args:
        settings: which namespace of which server.
        store: the place.
        kept: seconds for which they are kept.
        arguments: whether arguments, and messages that quote them, are kept, where workers record them.
    """

    def __init__(self, settings: Settings, store: Store, *, kept: float, arguments: bool) -> None:
        self.settings = settings
        self._store = store
        self._kept = kept
        self._arguments = arguments
        self._stop = asyncio.Event()
        self._position = store.position()
        self._is_serving = False
        self._pruned = 0.0
        # By step, what keeps it from being done: "read", "write" or "prune".
        self._troubles: dict[str, str] = {}
        self._warn_at = time.monotonic() + _SILENCE
        self._began = time.time()

    @property
    def trouble(self) -> str:
        """Why attempts can't be kept now; empty when they can."""
        return next(iter(self._troubles.values()), "")

    def stop(self) -> None:
        """Make it end after what it writes now."""
        self._stop.set()

    async def run(self, serving: Callable[[], object] = lambda: None) -> None:
        """Keep the history; a server that goes away is tried again.

        Args:
            serving: called once it has read from the server.

        Raises:
            BrokerError: the server can't be reached or refuses us at the start.
        """
        given_up = time.monotonic() + (self.settings.connect_timeout or 0.0)
        while not self._stop.is_set():
            try:
                async with Admin(self.settings) as admin:
                    await self._follow(admin, serving)
            except BrokerError as error:
                is_start = not self._is_serving
                if is_start and (not isinstance(error, BrokerUnavailable) or time.monotonic() >= given_up):
                    raise
                self._failed("read", error)
                await at_most(_AGAIN, self._stop.wait())

    async def _follow(self, admin: Admin, serving: Callable[[], object]) -> None:
        while not self._stop.is_set():
            calls, entry = await admin.ended_after(self._position.entry)
            self._done("read")
            if not self._is_serving:
                self._is_serving = True
                serving()
            if entry != self._position.entry:
                await self._write(calls, entry)
            else:
                await self._warn(admin)
            if time.monotonic() >= self._pruned:
                self._pruned = time.monotonic() + _PRUNED_EVERY
                await self._try(self._store.prune, await admin.now() - self._kept)
            if len(calls) < _MANY:
                await at_most(_EVERY, self._stop.wait())

    async def _write(self, calls: list[RecentCall], entry: str) -> None:
        position, missing = self._position.after(calls, entry)
        for call in calls:
            if not self._arguments:
                call.arguments = ""
                # A refusal of arguments quotes them.
                call.message = "" if call.error == "invalid_arguments" else call.message
        while not await self._try(self._store.write, calls, missing, position):
            await at_most(_AGAIN, self._stop.wait())
            if self._stop.is_set():
                return
        self._position = position
        if missing:
            telemetry.log.warning("history.missing", attempts=missing)

    async def _try(self, step: Callable[..., None], *arguments: Any) -> bool:
        try:
            await asyncio.to_thread(step, *arguments)
        except StoreFailed as error:
            self._failed(step.__name__, error)
            return False
        self._done(step.__name__)
        return True

    def _failed(self, step: str, error: Exception) -> None:
        """Say it, unless it was said before and has not been done since."""
        if self._troubles.get(step) != str(error):
            self._troubles[step] = str(error)
            telemetry.log.error("history.interrupted" if step == "read" else "history.failed", error=str(error))

    def _done(self, step: str) -> None:
        if was := self._troubles.pop(step, ""):
            telemetry.log.info("history.restored", was=was)

    async def _warn(self, admin: Admin) -> None:
        """Say once that calls end of which no worker tells the history."""
        if self._position.entry or time.monotonic() < self._warn_at:
            return
        self._warn_at = time.monotonic() + _SILENCE
        if any(call.ended > self._began for call in await admin.recent(1)):
            self._warn_at = float("inf")
            telemetry.log.warning("history.untold", advice=f"set {PREFIX}HISTORY at the workers")


class ProbedHistory(Probed):
    """Answers probes for what keeps a history."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper.settings)
        self._keeper = keeper

    async def unready(self) -> str:
        """Return why attempts can't be kept; empty when they can."""
        return self._keeper.trouble if self.started else "the history does not begin yet"

    async def report(self) -> dict[str, bool | str]:
        """Return whether attempts are kept."""
        reason = await self.unready()
        return {"healthy": not reason, "reason": reason}

    async def metrics(self) -> str:
        """Return whether attempts are kept, as a metric."""
        made = Exposition(self._keeper.settings.namespace)
        made.add("toolbus_up", int(not await self.unready()))
        made.add("toolbus_log_lines_lost_total", lines_lost())
        return made.text()
