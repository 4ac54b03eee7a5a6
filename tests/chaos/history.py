"""Records of everybody in a run: append-only files of JSON lines, one per process, outside of what is tested.

A line is one ``write`` to a file opened with O_APPEND, so that a process that is killed leaves whole lines
behind. Times are ``time.monotonic()``, which all processes of a machine share. A ``pid`` is the number that the run gave a process: the
system gives its own numbers again within an hour.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec


class Record(msgspec.Struct, tag_field="t", frozen=True, omit_defaults=True):
    """A record of a run, with the time at which it was written."""

    at: float


# -- agents ---------------------------------------------------------------------------------------------


class Agent(Record, frozen=True):
    """An agent process opened its bus: process ``pid`` is agent ``index``, known to the server as ``id``."""

    index: int
    id: str
    pid: int


class Issued(Record, frozen=True):
    """An agent is about to make a call."""

    key: str
    pid: int


class Ended(Record, frozen=True):
    """A call as its agent saw it, to its end.

    Attributes:
        segments: the text events, joined; a new segment begins at each reset.
        pieces: how many text events there were.
        finished: how many ``Finished`` events there were.
        first: the worker of the ``Started`` event.
        silence: the longest time without any event, as (from, until).
    """

    key: str
    id: str
    pid: int
    began: float
    success: bool
    output: str | None = None
    error: str = ""
    code: str = ""
    message: str = ""
    attempts: int = 0
    worker: str = ""
    segments: tuple[str, ...] = ()
    pieces: int = 0
    finished: int = 1
    first: str = ""
    silence: tuple[float, float] = (0.0, 0.0)


class Cancelled(Record, frozen=True):
    """An agent cancels a call, or leaves its stream, before its end."""

    key: str
    pid: int


class Counted(Record, frozen=True):
    """An agent's own counts since it started: frames that it could not read, and those that came before earlier ones of their runs."""

    id: str
    malformed: int
    early: int = 0


# -- workers --------------------------------------------------------------------------------------------


class Serving(Record, frozen=True):
    """A worker process is registered, and takes calls."""

    pid: int


class Begun(Record, frozen=True):
    """A handler begins; written before it does anything. ``call`` is the id of the call that it runs for."""

    key: str
    attempt: int
    pid: int
    call: str = ""


class Left(Record, frozen=True):
    """A handler has come to its end: ``done``, ``cancelled``, or the name of what it raised."""

    key: str
    attempt: int
    pid: int
    how: str


# -- the driver -----------------------------------------------------------------------------------------


class Started(Record, frozen=True):
    """The driver started a process, which has the number ``system`` there; ``other`` is whether it imports the other version of toolbus."""

    role: str
    pid: int
    other: bool = False
    system: int = 0


class Exited(Record, frozen=True):
    """A process is gone; ``status`` is its exit code, or the negative number of the signal that ended it."""

    role: str
    pid: int
    status: int
    wanted: bool


class Hit(Record, frozen=True):
    """A fault was applied, from ``at`` until ``until``, to these processes or connections."""

    kind: str
    until: float
    what: str
    pids: tuple[int, ...] = ()


class Planted(Record, frozen=True):
    """The driver wrote something unreadable: stream entry ``entry`` of a queue, or a frame for ``agent``."""

    entry: str
    agent: str = ""


class Sample(Record, frozen=True):
    """Memory: the server's used bytes, and the resident bytes of each process by ``role:pid``."""

    server: int
    processes: dict[str, int]


class Key(msgspec.Struct, frozen=True):
    """A key of the server and its time to live in milliseconds (-1: none)."""

    name: str
    ttl: int


class Queue(msgspec.Struct, frozen=True):
    """A request stream: its length, its pending entries, and its consumers."""

    name: str
    length: int
    pending: int
    consumers: tuple[str, ...]


class State(Record, frozen=True):
    """The server at one moment.

    Attributes:
        name: ``quiet`` (every call has ended, everybody still lives), ``closed`` (everybody has left), ``later`` (TTLs have run).
        live: instances whose lease lasts.
        dead: instances in the table of leases whose lease is over.
        letters: dead letters as (reason, entry, request).
        settled: whether it came to rest in time.
    """

    name: str
    queues: tuple[Queue, ...] = ()
    keys: tuple[Key, ...] = ()
    live: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    letters: tuple[tuple[str, str, str], ...] = ()
    settled: bool = True
    workers: tuple[int, ...] = ()


AnyRecord = Agent | Issued | Ended | Cancelled | Counted | Serving | Begun | Left | Started | Exited | Hit | Planted | Sample | State

R = TypeVar("R", bound=Record)


class Journal:
    """One process's own file of the history.

    Args:
        folder: of the files.
        name: of this one.
        pid: the number that the run gave the process.
    """

    def __init__(self, folder: Path, name: str, pid: int = 0) -> None:
        self.pid = pid
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, record: AnyRecord) -> None:
        """Append a record; it survives this process."""
        os.write(self._file, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class History:
    """All records of a run.

    Args:
        runs: how often each request of the backlog was run, and lastly how often requests that were never queued.
    """

    def __init__(self, records: Iterable[AnyRecord], runs: Sequence[int] = (0,)) -> None:
        self.runs = runs
        self._by_type: dict[type[Record], list[Record]] = {}
        for record in sorted(records, key=lambda record: record.at):
            self._by_type.setdefault(type(record), []).append(record)

    def of(self, kind: type[R]) -> list[R]:
        """The records of one type, in order of time."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]


def read(folder: Path, pattern: str = "*") -> Iterator[AnyRecord]:
    """The records of the files in a folder."""
    decoder = msgspec.json.Decoder(AnyRecord)
    for path in sorted(folder.glob(f"{pattern}.jsonl")):
        # A file that is being written may end within a line.
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield decoder.decode(line)
