"""Held documents: each is written by one process at a time, under a lease, and has values, a log of bounded length, and a TTL.

``News`` tells that others have changed something.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.reading import skip
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.values.results import EnvelopeError

T = TypeVar("T")

Value = str | int | bytes

By = Literal["holder", "next", "new", "anyone"]
"""The right to make a change: that of the process that holds the document; of the ``next`` one, which takes or begins it when nobody holds
it; of the process that begins a ``new`` one; or of ``anyone``."""

Word = Literal["kept", "lost", "other", "gone", "held", "full", "behind", "damaged"]
"""The server's answer to a change: ``kept``, or why it was not made, as the script says."""


class Shape(NamedTuple):
    """The form of a kind of documents on the server.

    Attributes:
        holder: the field with the token of the process that holds it.
        next: the field with the number of the log's next record.
        record: what the names of records begin with.
        most: most records that are kept.
        gaps: whether numbers of records may be left out.
        timed: whether the server's time (ms) and a space stand before each record.
    """

    holder: str
    next: str
    record: str
    most: int
    gaps: bool = False
    timed: bool = False


class Listing(NamedTuple):
    """The place of a document in a sorted set; times in milliseconds.

    Attributes:
        key: of the set.
        score: from now on; None takes the document off.
        past: members with a score so long ago are taken off as well.
        most: most members.
    """

    key: str
    score: int | None = None
    past: int = 0
    most: int = 1_000_000


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a document, made as a whole or not at all; made again, it changes nothing. Times in milliseconds.

    Attributes:
        token: of the process that holds the document, or is to hold it.
        by: the right that it needs.
        lease: from now on; 0 ends it, None leaves it as it is.
        ttl: of the document; 0 deletes it, None leaves it as it is.
        expected: what fields must be; empty for none.
        values: what fields become.
        begins: what fields are when ``next`` begins the document.
        stamps: fields that become the server's time.
        told: fields whose values are told.
        listings: the sets that list it.
        room: most members of these sets, before ``new``; 0 for any number.
        records: more of the log.
        number: of the first of them.
        keep: number of the first record that is kept.
        tells: a channel and a message.
    """

    token: str = ""
    by: By = "holder"
    lease: int | None = None
    ttl: int | None = None
    expected: Mapping[str, Value] = {}
    values: Mapping[str, Value] = {}
    begins: Mapping[str, Value] = {}
    stamps: Sequence[str] = ()
    told: Sequence[str] = ()
    listings: Sequence[Listing] = ()
    room: int = 0
    records: Sequence[str | bytes] = ()
    number: int = 0
    keep: int = 0
    tells: tuple[str, str] = ("", "")


class Outcome(NamedTuple):
    """The outcome of a change.

    Attributes:
        word: the answer.
        now: the server's time, in milliseconds.
        first: number of the log's first record; the end of the lease for ``held``, the number of members for ``full``.
        next: number of the log's next record.
        told: the values that were asked for.
    """

    word: Word
    now: int
    first: int
    next: int
    told: list[bytes | None]

    @property
    def kept(self) -> bool:
        """True when the change was made."""
        return self.word == "kept"


class HeldDocuments:
    """The documents of one shape."""

    def __init__(self, link: Link, shape: Shape) -> None:
        self._link = link
        self._shape = shape

    async def write(self, key: str, member: str, change: Change) -> Outcome:
        """Make a change of the document at ``key``, which sets list as ``member``.

        Raises:
            BrokerError: the server refuses, perhaps because its memory is full.
        """
        return await self._change(scripts.WRITE, key, member, change)

    async def settle(self, key: str, member: str, change: Change) -> Outcome:
        """Make a change that a server whose memory is full must not refuse: keep a lease or let go of it, end or delete a document.

        Raises:
            BrokerError: the server refuses.
        """
        return await self._change(scripts.SETTLE, key, member, change)

    def settle_soon(self, key: str, member: str, change: Change) -> None:
        """Make such a change, whatever becomes of it. Returns at once."""
        self._link.run(scripts.SETTLE, *packed(self._shape, key, member, change), repeatable=True)

    async def _change(self, script: scripts.Script, key: str, member: str, change: Change) -> Outcome:
        word, *found = await self._link.execute_script(script, *packed(self._shape, key, member, change), repeatable=True)
        return Outcome(cast("Word", word.decode("utf-8", "replace")), *found)


async def read_listed(key: str, members: Iterable[bytes], read: Callable[[bytes], Awaitable[T | None]]) -> list[T]:
    """Read what a list at ``key`` names; a member at whose place nothing that can be read stands is left out, and hides no other.

    Raises:
        BrokerError: the server could not be asked.
    """

    async def one(member: bytes) -> T | None:
        try:
            return await read(member)
        except (EnvelopeError, ReplyError) as error:
            skip(key, str(error), field=member)
            return None

    return [each for each in await asyncio.gather(*map(one, members)) if each is not None]


def packed(shape: Shape, key: str, member: str, change: Change) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """Return the keys and arguments of the scripts."""
    times = ("" if each is None else each for each in (change.lease, change.ttl))
    head: tuple[Value, ...] = (shape.holder, shape.next, shape.record, change.token, change.by, *times)
    log = (change.number, change.keep, shape.most, int(shape.gaps), int(shape.timed))
    bounds: tuple[Value, ...] = (member, change.room or "", *change.tells, *log)
    lists: list[Value] = []
    for each in change.listings:
        lists += ("-" if each.score is None else each.score, each.past, each.most)
    groups: list[Value] = []
    for group in (_flat(change.expected), _flat(change.values), _flat(change.begins), change.stamps, change.told, lists):
        groups += (len(group), *group)
    return (key, *(each.key for each in change.listings)), (*head, *bounds, *groups, *change.records)


def _flat(fields: Mapping[str, Value]) -> list[Value]:
    return [word for pair in fields.items() for word in pair]


class News(msgspec.Struct, eq=False):
    """Hears on one channel that there is something new to look at. Not every change is told.

    Attributes:
        count: how much this process heard.
        ended: nobody waits any more.
    """

    link: Link
    channel: str
    count: int = 0
    ended: bool = False
    followed: bool = False
    heard: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def follow(self) -> None:
        """Hear of changes from now on."""
        if not self.followed:
            self.followed = True
            self.link.subscribe(self.channel)

    def pushed(self, message: list[Any]) -> None:
        """Take in a message of the server's; those of other channels are ignored."""
        if len(message) == 3 and message[0] == b"message" and message[1] == self.channel.encode():
            self.nudge()

    def nudge(self) -> None:
        """Let everybody look again: what was told meanwhile may not have arrived."""
        self.count += 1
        self.heard.set()
        self.heard = asyncio.Event()

    def end(self) -> None:
        """Let nobody wait any more."""
        self.ended = True
        self.nudge()

    async def wait(self, since: int, seconds: float | None = None) -> None:
        """Wait until ``count`` is another number than ``since``, and no longer than ``seconds``."""
        self.follow()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count == since:
                    await self.heard.wait()
