"""Keep the tasks of coding agents, each run by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from toolbus.bus.broker.held.document import Change, HeldDocuments, Listing, News, Shape, Value, read_listed
from toolbus.bus.broker.protocols import (
    KEPT,
    MOST_ENDED,
    MOST_LINE,
    MOST_LINES,
    MOST_OPEN,
    MOST_SPEC,
    STATUSES,
    ClaimedCreation,
    Creation,
    CreationOverview,
    CreationStatus,
    Spent,
    Written,
)
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import MOST_TEXT, integer, moment, shown, skip, skipping, text
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import server_ms
from toolbus.bus.values.canonical import digest
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.envelope import is_ident, new_id
from toolbus.bus.values.results import ConfigurationError, EnvelopeError, ToolError
from toolbus.bus.values.settings import Settings

# Ids have eight hexadecimal digits, so that two submissions may meet at one.
_MOST_TRIES = 100


def submitted(spec: str, by: str, key: str, about: str) -> tuple[str, str]:
    """Return a spec as it is kept, and the token of its submission: the same for the same key of the same user.

    Raises:
        ConfigurationError: the spec is empty or too long, or another text is.
    """
    spec = whole_text(spec)
    if not spec.strip():
        raise ConfigurationError("the specification of a task is empty; say what the tool should do")
    if len(spec.encode()) > MOST_SPEC:
        raise ConfigurationError(f"the specification of a task is over the bound of {MOST_SPEC:,} bytes")
    for name, given in (("user", by), ("key", key), ("tool", about)):
        if len(given) > MOST_TEXT or whole_text(given) != given:
            raise ConfigurationError(f"the {name} of a task is a text of at most {MOST_TEXT} characters")
    if not key:
        return spec, secrets.token_hex(16)
    return spec, digest((by, key))


def ids_of(token: str, *, keyed: bool) -> Iterator[str]:
    """Yield the ids that a submission may get, one after another.

    Raises:
        ToolError: ``overloaded``: so many in a row belong to others that the namespace must be full of them.
    """
    for number in itertools.count():
        if number == _MOST_TRIES:
            raise _refused(number)
        digits = hashlib.blake2b(f"{token}/{number}".encode(), digest_size=4).hexdigest() if keyed else secrets.token_hex(4)
        yield f"create_{digits}"


def _refused(count: int) -> ToolError:
    return ToolError(f"{count} tasks wait or run and there is room for no more", type="overloaded", code="creations", retryable=True)


_TEXTS = {"spec": MOST_SPEC, "by": MOST_LINE, "about": MOST_LINE, "result": MOST_SPEC, "worker": MOST_LINE, "progress": MOST_LINE}
_TIMES = ("created", "started", "ended")
_COUNTS = ("attempts", "lines", "prompt_tokens", "completion_tokens", "price")
FIELDS = ("status", "cancel", *_TEXTS, *_TIMES, *_COUNTS)
"""The fields of a record, in the order in which ``creation_of`` takes their values."""


def creation_of(id: str, values: Sequence[bytes | None]) -> Creation | None:
    """Return the task of a record's values; None when there is no record.

    Raises:
        EnvelopeError: a value can't be read.
    """
    of = dict(zip(FIELDS, values, strict=True))
    if of["status"] is None:
        return None
    status = text(of["status"])
    if status not in STATUSES:
        raise EnvelopeError(f"{shown(status)!r} is no status of a task")
    found: dict[str, Any] = {name: text(of[name] or b"", most=most) for name, most in _TEXTS.items()}
    found |= {name: moment(of[name] or b"0") for name in _TIMES}
    attempts, lines, *spent = (integer(of[name] or b"0") for name in _COUNTS)
    status = cast("CreationStatus", status)
    return Creation(id=id, status=status, cancelled=of["cancel"] == b"1", attempts=attempts, lines=lines, spent=Spent(*spent), **found)


# A task that nobody begins, and whose record nobody writes to, goes after so many seconds.
_UNTOUCHED = 90 * 86_400_000
# A process that has died holds its tasks no longer than this many seconds.
_LONGEST_LEASE = 30.0
# No lease is longer than this many milliseconds: one that ends later was set before the clock was set back.
_LONGEST_OF_ALL = 600_000
_MOST_ATTEMPTS = 10
_GIVEN_UP = f"{_MOST_ATTEMPTS} processes that ran it died, one after another"
_CANDIDATES = 10


class Creations:
    """The tasks of a namespace.

    Attributes:
        lease: seconds for which a process holds a task without a renewal.
        news: of changes of tasks.
    """

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._documents = HeldDocuments(link, Shape("claim", "lines", "l:", MOST_LINES, gaps=True))
        self.lease = min(settings.lease, _LONGEST_LEASE)
        self._lease_ms = int(self.lease * 1000)
        self.news = News(link, keys.creations_told)

    # -- those who ask for tasks ------------------------------------------------------------------

    async def submit(self, spec: str, *, by: str = "", key: str = "", about: str = "") -> Creation:
        """Queue a task and return it; with a ``key``, the same one however often it is submitted by the same user while it is kept.

        Raises:
            ConfigurationError: the spec is empty or too long, or the key was another task's.
            ToolError: ``overloaded``: too many tasks wait or run.
            BrokerError: the server refuses.
        """
        spec, token = submitted(spec, by, key, about)
        values: dict[str, Value] = {"token": token, "spec": spec, "by": by, "about": about, "status": "queued"}
        listings = (Listing(self._keys.creations_queued, 0, _UNTOUCHED), Listing(self._keys.creations_running))
        for ident in ids_of(token, keyed=bool(key)):
            change = Change(
                by="new",
                ttl=_UNTOUCHED,
                values=values,
                stamps=("created",),
                told=("token", "spec", "about"),
                listings=listings,
                room=MOST_OPEN,
                tells=self._message("queued", ident),
            )
            found = await self._documents.write(self._keys.creation(ident), ident, change)
            if found.word == "full":
                raise _refused(found.first)
            if found.kept:
                break
            if found.told[0] == token.encode():
                if found.told[1:] != [spec.encode(), about.encode()]:
                    raise ConfigurationError(f"the idempotency key {key!r} was another task's")
                break
        # It may have been deleted by now; it was queued all the same.
        return await self.get(ident) or Creation(id=ident, status="queued", spec=spec, by=by, about=about)

    async def get(self, id: str) -> Creation | None:
        """Return a task with its log; None when there is none.

        Raises:
            BrokerError: the server could not be asked.
        """
        if not is_ident(id):
            return None
        found = await self._read(id)
        if found is None or not found.lines:
            return found
        names = [f"l:{number}" for number in range(max(0, found.lines - MOST_LINES), found.lines)]
        lines: list[str] = []
        for line in await self._link.execute("HMGET", self._keys.creation(id), *names, repeatable=True):
            # One that can't be read is left out.
            with contextlib.suppress(EnvelopeError):
                lines.append(text(line, most=MOST_LINE))
        return msgspec.structs.replace(found, log=tuple(lines))

    async def overview(self, recent: int = 20) -> CreationOverview:
        """Return the tasks that wait or run, and so many that have ended.

        Raises:
            BrokerError: the server could not be asked.
        """
        keys = self._keys
        running, queued, ended = await asyncio.gather(
            self._link.execute("ZRANGE", keys.creations_running, 0, MOST_OPEN - 1, repeatable=True),
            self._link.execute("ZRANGE", keys.creations_queued, 0, MOST_OPEN - 1, repeatable=True),
            self._link.execute("ZREVRANGE", keys.creations_ended, 0, max(0, min(recent, MOST_ENDED) - 1), repeatable=True),
        )
        listed = [*dict.fromkeys([*running, *queued, *(ended if recent > 0 else [])])]
        found = await read_listed(keys.creations_queued, listed, lambda member: self._read(text(member)))
        by_age = sorted(found, key=lambda each: (each.created, each.id))
        return CreationOverview(
            [each for each in by_age if each.status == "running"],
            [each for each in by_age if each.status == "queued"],
            sorted((each for each in found if not each.open), key=lambda each: (-each.ended, each.id)),
        )

    async def cancel(self, id: str) -> CreationStatus | None:
        """End a task: a queued one at once, a running one as soon as its process hears of it; return its status now, None without one.

        Raises:
            BrokerError: the server refuses.
        """
        if not is_ident(id):
            return None
        while (found := await self._read(id)) is not None and found.open:
            # One that is begun, ends or is given back meanwhile is looked at again.
            change = (
                self._end(id, "cancelled", "")
                if found.status == "queued"
                else Change(values={"cancel": 1}, tells=self._message("cancel", id))
            )
            change = msgspec.structs.replace(change, by="anyone", expected={"status": found.status})
            if (await self._documents.settle(self._keys.creation(id), id, change)).word != "other":
                found = await self._read(id)
                break
        return None if found is None else found.status

    # -- those who run them -----------------------------------------------------------------------

    async def claim(self, worker: str) -> ClaimedCreation | None:
        """Begin the oldest queued task, or go on with one whose process has died; None when there is none.

        Raises:
            BrokerError: the server refuses.
        """
        self.news.follow()
        for member in await self._candidates():
            with skipping(self._keys.creations_queued, field=member):
                claimed = await self._take(text(member), worker)
                if claimed is not None:
                    return claimed
        return None

    async def write(
        self,
        claimed: ClaimedCreation,
        *,
        first: int = 0,
        lines: tuple[str, ...] = (),
        progress: str | None = None,
        spent: Spent | None = None,
    ) -> Written:
        """Renew the lease, and keep what is given; writing the same again changes nothing.

        Args:
            claimed: what ``claim`` returned.
            first: number of the first of these lines.
            lines: more of the log.
            progress: what it does now.
            spent: its whole cost so far.

        Raises:
            BrokerError: the server refuses.
        """
        values: dict[str, Value] = {}
        if progress is not None:
            values["progress"] = whole_text(progress)[:MOST_LINE]
        if spent is not None:
            values |= msgspec.structs.asdict(spent)
        number = first + max(0, len(lines) - MOST_LINES)
        change = Change(
            token=claimed.token,
            expected={"status": "running"},
            values=values,
            told=("cancel",),
            records=[whole_text(line)[:MOST_LINE] for line in lines[-MOST_LINES:]],
            number=number,
            keep=max(0, first + len(lines) - MOST_LINES),
            lease=self._lease_ms,
            ttl=_UNTOUCHED,
            listings=(Listing(self._keys.creations_running, self._lease_ms, _UNTOUCHED),),
        )
        found = await self._documents.write(self._keys.creation(claimed.id), claimed.id, change)
        return "lost" if not found.kept else "cancel" if found.told == [b"1"] else "kept"

    async def end(self, claimed: ClaimedCreation, status: CreationStatus, result: str = "", *, delay: float = 0.0) -> bool:
        """End a task, or, as ``queued``, let another process go on with it after ``delay`` seconds; False when it is another process's.

        Raises:
            BrokerError: the server refuses.
        """
        if status == "queued":
            listings = Listing(self._keys.creations_queued, math.ceil(delay * 1000), _UNTOUCHED), Listing(self._keys.creations_running)
            # An attempt that was given back is none: only those count whose process died.
            values: dict[str, Value] = {"status": status, "attempts": max(0, claimed.creation.attempts - 1)}
            change = Change(lease=0, ttl=_UNTOUCHED, values=values, listings=listings, tells=self._message(status, claimed.id))
        else:
            change = self._end(claimed.id, status, whole_text(result).encode()[:MOST_SPEC].decode("utf-8", "ignore"))
        change = msgspec.structs.replace(change, token=claimed.token, expected={"status": "running"}, told=("status",))
        found = await self._documents.settle(self._keys.creation(claimed.id), claimed.id, change)
        return found.kept or (found.word == "other" and found.told == [status.encode()])

    # -- inside -----------------------------------------------------------------------------------

    def _message(self, word: str, id: str) -> tuple[str, str]:
        return self._keys.creations_told, f"{word} {id}"

    def _end(self, id: str, status: CreationStatus, result: str) -> Change:
        """Return the end of a task; it is in one of the sets in any case."""
        kept, keys = int(KEPT * 1000), self._keys
        return Change(
            lease=0,
            ttl=kept,
            values={"status": status, "result": result, "progress": ""},
            stamps=("ended",),
            listings=(Listing(keys.creations_ended, 0, kept, MOST_ENDED), Listing(keys.creations_queued), Listing(keys.creations_running)),
            tells=self._message("ended", id),
        )

    async def _take(self, id: str, worker: str) -> ClaimedCreation | None:
        """Begin a task, or go on with it; None when another process runs it, or nobody can any more."""
        key, keys = self._keys.creation(id), self._keys
        found, holder = None, b""
        try:
            *values, last = await self._link.execute("HMGET", key, *FIELDS, "claim", repeatable=True)
            found, holder = creation_of(id, values), last or b""
        except EnvelopeError as error:
            skip(key, error)
        except ReplyError as error:
            if error.code != "WRONGTYPE":
                raise
        if found is None or not found.open:
            # Nobody can run it, so that it hides no other.
            listings = Listing(keys.creations_queued), Listing(keys.creations_running)
            change = Change(by="anyone", expected={} if found is None else {"status": found.status}, listings=listings)
            await self._documents.settle(key, id, change)
            return None
        token = new_id()
        expected: dict[str, Value] = {"status": found.status, "claim": holder}
        if found.cancelled or found.attempts >= _MOST_ATTEMPTS:
            change = self._end(id, "cancelled", "") if found.cancelled else self._end(id, "failed", _GIVEN_UP)
            await self._documents.settle(key, id, msgspec.structs.replace(change, token=token, by="next", expected=expected))
            return None
        change = Change(
            token=token,
            by="next",
            expected=expected,
            values={"status": "running", "worker": worker, "attempts": found.attempts + 1},
            stamps=() if found.started else ("started",),
            lease=self._lease_ms,
            ttl=_UNTOUCHED,
            listings=(Listing(keys.creations_running, self._lease_ms, _UNTOUCHED), Listing(keys.creations_queued)),
            tells=self._message("running", id),
        )
        if not (await self._documents.write(key, id, change)).kept:
            return None
        return None if (taken := await self._read(id)) is None else ClaimedCreation(taken, token)

    async def _candidates(self) -> list[bytes]:
        """Return the tasks that a process may run now: those whose process may have died, and then the oldest queued ones."""
        now = int(await server_ms(self._link))
        running, queued = self._keys.creations_running, self._keys.creations_queued
        first = ("LIMIT", 0, _CANDIDATES)
        found = await asyncio.gather(
            self._link.execute("ZRANGE", running, "-inf", now, "BYSCORE", *first, repeatable=True),
            self._link.execute("ZRANGE", running, now + _LONGEST_OF_ALL, "+inf", "BYSCORE", *first, repeatable=True),
            self._link.execute("ZRANGE", queued, "-inf", now, "BYSCORE", *first, repeatable=True),
        )
        return [each for part in found for each in part]

    async def _read(self, id: str) -> Creation | None:
        key = self._keys.creation(id)
        said = await self._link.execute("HMGET", key, *FIELDS, repeatable=True)
        with skipping(key):
            return creation_of(id, said)
        return None
