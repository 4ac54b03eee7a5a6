"""The keys of the simulated server, with values of Redis' types and their expiry, on a clock that the world sets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

Id = tuple[int, int]
LAST_ID: Id = (2**64 - 1, 2**64 - 1)


class ErrorReply(Exception):
    """An error with which the server answers; its text begins with the code."""


class Status(bytes):
    """A simple string, such as ``OK``."""


class Hash(dict[bytes, bytes]):
    """Fields and their values."""


class Members(dict[bytes, None]):
    """A set, in the order in which its members came."""


class Scores(dict[bytes, float]):
    """A sorted set."""

    def ranked(self) -> list[bytes]:
        """Return the members by score, then by their bytes."""
        return sorted(self, key=lambda member: (self[member], member))


class Elements(list[bytes]):
    """A list."""


@dataclass(slots=True)
class Pending:
    """An entry that a consumer has: since when (ms), and how often it was delivered."""

    consumer: bytes
    since: int
    count: int = 1


@dataclass(slots=True)
class Group:
    """A consumer group; ``consumers`` has when each was seen last (ms)."""

    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)

    def between(self, first: Id, last: Id) -> list[Id]:
        """Return the pending ids in a range, in their order."""
        return sorted(each for each in self.pending if first <= each <= last)


@dataclass(slots=True)
class Stream:
    """Entries by id, in the order of their ids; each is fields and values by turns."""

    entries: dict[Id, list[bytes]] = field(default_factory=dict)
    last: Id = (0, 0)
    groups: dict[bytes, Group] = field(default_factory=dict)

    def next_id(self, now: int) -> Id:
        """Return the id of an entry that is added now."""
        if now > self.last[0]:
            return (now, 0)
        ms, number = self.last
        if number == 2**64 - 1:
            ms, number = ms + 1, -1
        if ms >= 2**64:
            raise ErrorReply("ERR The stream has exhausted the last possible ID, unable to add more items")
        return (ms, number + 1)

    def between(self, first: Id, last: Id) -> list[Id]:
        """Return the ids of a range, in their order."""
        if first == last:
            return [first] if first in self.entries else []
        if last < LAST_ID:
            return [each for each in self.entries if first <= each <= last]
        if first > self.last:
            return []
        # Most reads are for the newest.
        found = list(takewhile(first.__le__, reversed(self.entries)))
        found.reverse()
        return found


Value = bytes | Hash | Members | Scores | Elements | Stream
Snapshot = tuple[dict[bytes, Value], dict[bytes, int]]
V = TypeVar("V", bytes, Hash, Members, Scores, Elements, Stream)

_NAMES: dict[type, str] = {bytes: "string", Hash: "hash", Members: "set", Scores: "zset", Elements: "list", Stream: "stream"}


class Storage:
    """The keys of one server.

    Args:
        clock: the server's time, in microseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.values: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.changed: set[bytes] = set()

    def now(self) -> int:
        """Return the server's time, in milliseconds since 1970."""
        return self.clock() // 1000

    def find(self, key: bytes) -> Value | None:
        """Return the value of a key, None when there is none or it has expired."""
        ends = self.expires.get(key)
        if ends is not None and self.clock() // 1000 > ends:
            self.remove(key)
        return self.values.get(key)

    def get(self, key: bytes, kind: type[V]) -> V | None:
        """Return the value of a key that has to be of a type; raises ``ErrorReply`` when it is of another."""
        value = self.find(key)
        if value is not None and type(value) is not kind:
            raise ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def make(self, key: bytes, kind: type[V]) -> V:
        """Return the value of a key, which is made when there is none."""
        value = self.get(key, kind)
        if value is None:
            value = kind()
            self.values[key] = value
        self.changed.add(key)
        return value

    def tidy(self, key: bytes, value: Value) -> None:
        """Remove a key whose value has lost its last member."""
        self.changed.add(key)
        if not value:
            self.remove(key)

    def remove(self, key: bytes) -> bool:
        """Remove a key; False when there was none."""
        self.expires.pop(key, None)
        self.changed.add(key)
        return self.values.pop(key, None) is not None

    def kind(self, key: bytes) -> str:
        """Return the type of a key, as the command TYPE names it."""
        value = self.find(key)
        return "none" if value is None else _NAMES[type(value)]

    def names(self) -> Iterable[bytes]:
        """Return the keys that have not expired."""
        return [key for key in list(self.values) if self.find(key) is not None]

    def snapshot(self) -> Snapshot:
        """Return a copy of everything."""
        return copy.deepcopy(self.values), dict(self.expires)

    def restore(self, snapshot: Snapshot) -> None:
        """Be as a snapshot was."""
        values, expires = snapshot
        self.changed.update(self.values, values)
        self.values, self.expires = copy.deepcopy(values), dict(expires)
