"""Publish requests: flushes, idempotency keys, and cancellation of what was published."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Fate, Sender, Verdict
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.server.reading import identifier, integer, shown, skip, text
from toolbus.bus.broker.transport.command import REFUSES_ALL, OnReply, Reply, ReplyError, UnwrittenError, WrongAnswerError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.mastership import Mastership
from toolbus.bus.values.envelope import (
    BEGAN_LATE,
    NOT_BEGUN,
    NOT_FINISHED,
    NOT_TAKEN,
    Frame,
    Request,
    encode_request,
    share_digest,
    work_digest,
)
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, EnvelopeError

MEMO_TTL = 600
# Flushes of which the server remembers the verdicts (publish.lua).
_MEMOS = 64
# As for finishing: bounds how long one script holds the server.
_MOST_REQUESTS = 256
_MOST_BYTES = 1_048_576

# Bounds of the calls that wait for a connection.
_MOST_WAITING = 10_000
_MOST_WAITING_BYTES = 64 * 1024 * 1024
_SKIPS = 100

# Seconds until a cancellation that was refused is sent again.
_AGAIN_FIRST, _AGAIN_MOST = 0.05, 1.0
_PASSING = REFUSES_ALL | {"NOTYET"}

_is_entry = re.compile(rb"\d{1,20}-\d{1,20}").fullmatch

OnFate = Callable[[Fate], None]

_FATES: dict[bytes, Fate] = {b"removed": "removed", b"signalled": "signalled", b"gone": "gone", b"shared": "shared"}
ABSENT = Verdict("absent", message="the service has no request stream")
_LATE = Verdict("late", message="its time was up before the server took it, so it did not run")
# With fewer seconds left a request is written with a timeout of 0 ms, which the scripts answer as they answer a missing stream.
_NO_TIME = 0.001


class Publish(msgspec.Struct, frozen=True, gc=False):
    """One request that waits for the end of the tick; ``deadline`` is local monotonic seconds.

    ``session`` stands for its session, if it keeps its place there.
    """

    call: str
    queue: str
    limit: int
    deadline: float
    document: bytes
    sender: Sender
    once: bool
    session: str = ""


class _Flush(NamedTuple):
    """The requests that one script publishes; ``args`` are its arguments without the number of the flush before it."""

    number: int
    batch: list[Publish]
    keys: tuple[str, ...]
    args: tuple[bytes | str | int, ...]
    once: bool


class Publisher:
    """Publishes over one link.

    Each flush carries a number; the server remembers the verdicts of the last 64, so that a flush
    written again after a lost connection adds nothing and gets the same verdicts. While there is no
    connection nothing is written: what its caller gives up meanwhile was certainly never published. Nor is anything written to a
    master that is being replaced, which would lose it, nor ``once`` work to a server that is not surely the master.

    Up to 64 flushes may be in flight. Each names the one before it, and is refused, and sent again, when that one was not carried out:
    the server publishes in the order of the calls also when it refuses some for a while.
    """

    def __init__(self, link: Link, keys: Keys, agent: str, mastership: Mastership, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._link = link
        self._mastership = mastership
        self._keys = keys
        self._queue_prefix = keys.queue_prefix
        self._memo = keys.flushes(agent)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Publish] = []
        self._waiting_bytes = 0
        self._flushing = False
        self._flush_number = 0
        # In ascending order.
        self._unanswered: dict[int, None] = {}
        # True while calls wait because the server would forget the verdict of the first of these flushes, and carry it out again.
        self._full = False
        # So many calls that find no room are refused without a look at who was given up.
        self._skips = 0
        # Those of them that the server may have carried out, each with the refusal: an answer was lost, and then it refused every write.
        self.doubted: dict[int, str] = {}
        self.published = 0

    def publish(self, publish: Publish) -> None:
        """Publish at the end of this tick, or when there is a connection again."""
        size = len(publish.document)
        full = len(self._waiting) >= _MOST_WAITING or self._waiting_bytes + size > _MOST_WAITING_BYTES
        if full and not self._writes(publish) and not self._makes_room(size):
            self._loop.call_soon(publish.sender.settle, _too_many(len(self._waiting)))
            return
        self._waiting.append(publish)
        self._waiting_bytes += size
        if not self._flushing:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Flush behind the callbacks that are scheduled now, so that the next calls of callers that were just woken leave in their turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def _makes_room(self, size: int) -> bool:
        """Drop what was given up meanwhile; return whether so many bytes may wait now."""
        if self._skips:
            self._skips -= 1
            return False
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._keep(waiting)
        fits = len(self._waiting) < _MOST_WAITING and self._waiting_bytes + size <= _MOST_WAITING_BYTES
        # A look at thousands of calls for each one that is refused would hold the loop.
        self._skips = 0 if fits else _SKIPS
        return fits

    def _writes(self, publish: Publish) -> bool:
        return self._link.connected and not self._full and self._mastership.admits(once=publish.once)

    def cancel(
        self, call: str, queue: str, entry: str, remaining_ms: int, on_fate: OnFate | None, why: str = "cancelled", *, once: bool = False
    ) -> None:
        """Remove a queued call, or tell the workers; ``once`` when its work must not happen twice."""
        if not entry:
            place = next((place for place, publish in enumerate(self._waiting) if publish.call == call), None)
            if place is not None:
                self._waiting_bytes -= len(self._waiting.pop(place).document)
            if on_fate is not None:
                on_fate("unknown" if place is None else "removed")
            return

        keys = (self._keys.queue(queue), self._keys.cancelled(queue))
        args = (entry, call, max(1, remaining_ms), self._keys.wake(queue), why, *((call, self._keys.prefix, 1) if once else ()))
        _cancel(self._link, keys, args, call, on_fate)

    def flush(self) -> None:
        """Write what waits and may be written now."""
        self._flushing = False
        if not self._link.connected or not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._link.gather()
        try:
            self._send_all(waiting)
        finally:
            self._link.flush()

    def _send_all(self, waiting: list[Publish]) -> None:
        in_order, once, others = list[Publish](), list[Publish](), list[Publish]()
        for publish in waiting:
            (in_order if publish.session else once if publish.once else others).append(publish)
        if in_order:
            self._send_in_order(in_order)
        for batch, twice_is_wrong in ((once, True), (others, False)):
            if batch and (self._mastership.unquestioned or self._mastership.admits(once=twice_is_wrong)):
                self._send(batch, once=twice_is_wrong)
            elif batch:
                self._keep(batch)

    def _send_in_order(self, waiting: list[Publish]) -> None:
        """Write calls that keep their places, up to the first that may not be written now; the others wait with it."""
        for once, group in itertools.groupby(waiting, key=lambda publish: publish.once):
            batch = list(group)
            if self._waiting or not self._mastership.admits(once=once):
                self._keep(batch)
            else:
                self._send(batch, once=once)

    def _keep(self, waiting: list[Publish]) -> None:
        kept = [publish for publish in waiting if not publish.sender.done]
        self._waiting += kept
        self._waiting_bytes += sum(len(publish.document) for publish in kept)

    def _send(self, waiting: list[Publish], *, once: bool) -> None:
        """Write calls for which somebody still waits, as many at once as do not hold the server for long."""
        part: list[Publish] = []
        size = 0
        for publish in waiting:
            if publish.sender.done:
                continue
            if part and (len(part) == _MOST_REQUESTS or size + len(publish.document) > _MOST_BYTES):
                self._send_part(part, once=once)
                part, size = [], 0
            part.append(publish)
            size += len(publish.document)
        if part:
            self._send_part(part, once=once)

    def _send_part(self, batch: list[Publish], *, once: bool) -> None:
        if self._flush_number - next(iter(self._unanswered), self._flush_number) >= _MEMOS:
            self._full = True
            self._keep(batch)
            return
        server = self._link.server
        # The place of each key among those of the script, the first of which is the memo.
        places: dict[str, int] = {}
        args: list[bytes | str | int] = [self._flush_number, MEMO_TTL * 1000, server.run_id if once and server is not None else ""]
        now = self._monotonic()
        for publish in batch:
            index = places.setdefault(f"{self._queue_prefix}{publish.queue}", len(places) + 2)
            bound: int | str = publish.limit
            if publish.session:
                bound = f"{bound} {places.setdefault(self._keys.order(publish.queue), len(places) + 2)} {publish.session}"
            args += (index, bound, max(1, int((publish.deadline - now) * 1000)), publish.document)
        flush = _Flush(self._flush_number, batch, (self._memo, *places), tuple(args), once)
        self._flush_number += 1
        self.published += len(batch)
        earlier = next(reversed(self._unanswered), None)
        self._unanswered[flush.number] = None
        self._write(flush, earlier)

    def _write(self, flush: _Flush, earlier: int | None, on_reply: OnReply | None = None, *, again: bool = False) -> None:
        last = () if earlier is None else (earlier,)

        def renew() -> tuple[bytes | str | int, ...]:
            # From a timeout the server makes a deadline: one as long as at first would let work begin after its caller's time, or although
            # nobody waits for it any more.
            args, now = list(flush.args), self._monotonic()
            args[5::4] = [0 if each.sender.done else max(0, int((each.deadline - now) * 1000)) for each in flush.batch]
            return (*args, *last)

        on_reply = on_reply or partial(self._published, flush)
        # Another server process may have forgotten that the work was published, and done: then it is not known what became of it.
        args = renew() if again else (*flush.args, *last)
        self._link.run(scripts.PUBLISH, flush.keys, args, on_reply, repeatable=True, same_server=flush.once, renew=renew)

    def _write_again(self, flush: _Flush, on_reply: OnReply | None = None) -> None:
        self._write(flush, max((number for number in self._unanswered if number < flush.number), default=None), on_reply, again=True)

    def _is_written_again(self, flush: _Flush, error: ReplyError) -> bool:
        if flush.number in self.doubted:
            return False
        if error.code == "NOTYET":
            if self.doubted:
                self._loop.call_later(_AGAIN_FIRST, self._write_again, flush)
            else:
                self._write_again(flush)
            return True
        if not _is_doubtful(error):
            return False
        self.doubted[flush.number] = str(error)
        answered = partial(self._published, flush)
        _insist(partial(self._write_again, flush), answered, error, wanted=lambda: not all(each.sender.done for each in flush.batch))
        return True

    def _published(self, flush: _Flush, reply: Reply) -> None:
        if isinstance(reply, ReplyError) and self._is_written_again(flush, reply):
            return
        self.doubted.pop(flush.number, None)
        del self._unanswered[flush.number]
        if self._full:
            self._full = False
            self.flush_soon()
        if isinstance(reply, BrokerError):
            verdict = failure(reply)
            for publish in flush.batch:
                publish.sender.settle(verdict)
            return
        try:
            verdicts = read_verdicts(reply, len(flush.batch))
        except EnvelopeError as error:
            # Another client may have overwritten the earlier answer that the server repeats.
            skip(self._memo, error)
            verdicts = [Verdict("unknown", message=f"the server's answer can't be read: {error}")] * len(flush.batch)
        now = self._monotonic()
        for publish, verdict in zip(flush.batch, verdicts, strict=True):
            publish.sender.settle(_LATE if verdict is ABSENT and publish.deadline - now < _NO_TIME else verdict)


def _cancel(link: Link, keys: tuple[str, ...], args: tuple[str | int, ...], call: str, on_fate: OnFate | None) -> None:
    """Cancel a call, again and again until its time is up while the server refuses every write."""
    loop = asyncio.get_running_loop()
    until = loop.time() + int(args[2]) / 1000
    write = partial(link.run, scripts.CANCEL, keys, args, repeatable=True)
    write(lambda reply: _insist(write, partial(report_fate, call, on_fate), reply, wanted=lambda: loop.time() < until))


def _is_doubtful(reply: Reply) -> bool:
    """Return whether a script may have been carried out although its answer is a refusal: that of the first time was lost."""
    return isinstance(reply, ReplyError) and reply.repeated and reply.code in REFUSES_ALL


def _insist(write: Callable[[OnReply], None], on_reply: OnReply, reply: Reply, *, wanted: Callable[[], bool]) -> None:
    """Pass on an answer to a script that may be written again, and write it again and again while the server refuses every write.

    Args:
        write: writes it once more.
        on_reply: called with the first other answer, or with a refusal when the script is not ``wanted`` any more.
        reply: what the server has answered until now.
    """
    loop = asyncio.get_running_loop()

    def receive(pause: float, reply: Reply) -> None:
        if isinstance(reply, ReplyError) and reply.code in _PASSING and wanted():
            loop.call_later(pause, write, partial(receive, min(2 * pause, _AGAIN_MOST)))
            return
        if isinstance(reply, ReplyError):
            reply.repeated = True
        elif isinstance(reply, UnwrittenError):
            # Only the latest try was certainly not carried out.
            reply = BrokerUnavailable(str(reply))
        on_reply(reply)

    receive(_AGAIN_FIRST, reply)


def report_fate(call: str, on_fate: OnFate | None, reply: Reply) -> None:
    """Report what became of a cancelled call, by the server's answer."""
    fate: Fate = "unknown"
    if isinstance(reply, BrokerError):
        telemetry.log.warning("cancel.failed", id=call, error=str(reply))
    else:
        fate = _FATES.get(reply, "unknown")
        if telemetry.logs(logging.DEBUG):
            telemetry.log.debug("cancel.done", id=call, outcome=fate)
    if on_fate is not None:
        on_fate(fate)


def read_verdicts(reply: Reply, count: int) -> list[Verdict]:
    """Return what became of the requests of one flush.

    Raises:
        EnvelopeError: the server's answer can't be read.
    """
    words = reply.split(b" ")
    if len(words) != count:
        raise EnvelopeError(f"{len(words)} verdicts for {count} requests")
    verdicts: list[Verdict] = []
    for word in words:
        if _is_entry(word):
            verdicts.append(Verdict("queued", word.decode()))
        elif word == b"-":
            verdicts.append(ABSENT)
        elif word[:1] == b"!":
            verdicts.append(Verdict("full", depth=integer(word[1:])))
        else:
            raise EnvelopeError(f"{shown(word)!r} is no verdict")
    return verdicts


def _too_many(calls: int) -> Verdict:
    return Verdict("failed", message=f"{calls} calls already wait for the connection to the server to come back, or for its Sentinels")


def failure(error: BrokerError) -> Verdict:
    """Return the verdict of a publication that the server answered with an error, or not at all."""
    if isinstance(error, (BrokerUnavailable, WrongAnswerError)) and not isinstance(error, UnwrittenError):
        return Verdict("unknown", message=str(error))
    if isinstance(error, ReplyError) and error.repeated:
        return Verdict("unknown", message=f"an answer was lost with its connection, and then the server refused: {error}")
    # It was not written, or the script stopped before it wrote: out of memory, read only, no permission.
    return Verdict("failed", message=str(error))


class _Followed(msgspec.Struct, eq=False):
    """A shared call's stream, and this process's callers of it; newcomers wait for a read that begins at its start."""

    call: str
    position: bytes = b"0"
    callers: list[str] = []
    newcomers: list[str] = []


class SharedCalls:
    """Publishes, joins and leaves shared calls, and knows which streams are to be read for them.

    Args:
        retention: seconds that an answer is kept beyond the call's timeout.
        wake: makes a waiting read of the replies return, so that the next one reads the new stream too.
        mastership: what it does not admit is kept, as is everything without a connection, and ``release`` publishes it.

    Attributes:
        followed: the streams that are to be read.
    """

    def __init__(self, link: Link, keys: Keys, agent: str, retention: float, wake: Callable[[], None], mastership: Mastership) -> None:
        self._link = link
        self._mastership = mastership
        # Calls that wait, each with its bytes.
        self._kept: dict[str, tuple[int, Callable[[], None]]] = {}
        self._kept_bytes = 0
        self._keys = keys
        self._agent = agent
        self._retention = retention
        self._wake = wake
        self.followed: dict[bytes, _Followed] = {}
        # Callers that joined a call, each with its deadline and what publishes for it when that call is over.
        self._joined: dict[str, tuple[float, Callable[[str], None]]] = {}
        # Calls of which it is not known whether they were published, each with the refusal; ``Requests`` tells of it.
        self.doubted: dict[str, str] = {}
        self._stream_of: dict[str, bytes] = {}
        # Attempts of the calls that a caller had joined before the one that it reads now.
        self._attempts: dict[str, int] = {}

    def publish(
        self, request: Request, queue: str, limit: int, deadline: float, document: bytes, sender: Sender, session: str = "", left: str = ""
    ) -> None:
        """Publish a call, or join the one that its key stands for.

        Args:
            session: stands for its session, if it keeps its place there.
            left: a call that it had joined and that is over.
        """
        once, again = request.effect == "once", partial(self.publish, request, queue, limit, deadline, document, sender, session)
        if not (self._link.connected and self._mastership.admits(once=once)):
            if len(self._kept) >= _MOST_WAITING or self._kept_bytes + len(document) > _MOST_WAITING_BYTES:
                sender.settle(_too_many(len(self._kept)))
                return
            self._kept[request.id] = len(document), partial(again, left)
            self._kept_bytes += len(document)
            return
        server = self._link.server

        def done(reply: Reply) -> None:
            self.doubted.pop(request.id, None)
            try:
                verdict = failure(reply) if isinstance(reply, BrokerError) else self._verdict(request.id, reply, left, deadline, again)
            except (EnvelopeError, IndexError) as error:
                skip(record, str(error))
                verdict = Verdict("unknown", message=f"the record of the idempotency key can't be read: {error}")
            sender.settle(verdict)
            if sender.done:
                self.forget(request.id)

        record = self._keys.shared(share_digest(request))
        keys = (record, self._keys.queue(queue), self._keys.call(request.id), *([self._keys.order(queue)] if session else ()))
        knowing = server.run_id if once and server is not None else ""

        def args() -> tuple[bytes | str | int, ...]:
            left = 0 if sender.done else max(0, int((deadline - time.monotonic()) * 1000))
            first = (request.id, work_digest(request), self._agent, limit, left, document, int(self._retention * 1000), knowing)
            return (*first, self._keys.prefix, self._keys.wake(queue), *([session] if session else ()))

        def write(on_reply: OnReply) -> None:
            self._link.run(scripts.SHARE, keys, args(), on_reply, repeatable=True, same_server=once, renew=args)

        def first(reply: Reply) -> None:
            if _is_doubtful(reply):
                self.doubted[request.id] = str(reply)
                _insist(write, done, reply, wanted=lambda: not sender.done)
            else:
                done(reply)

        write(first)

    def _verdict(self, call: str, reply: Reply, left: str, deadline: float, again: Callable[[str], None]) -> Verdict:
        """Return what became of a publication, and follow the call that it stands for; raises EnvelopeError."""
        if reply[0] in {b"queued", b"joined"}:
            entry = text(reply[1])
            runs = identifier(reply[2]) if reply[0] == b"joined" else call
            if runs not in {call, left}:
                self._joined[call] = deadline, again
            self.follow(call, runs)
            return Verdict("queued", entry=entry)
        if reply[0] == b"conflict":
            return Verdict("conflict")
        if reply[0] == b"absent":
            return _LATE if deadline - time.monotonic() < _NO_TIME else ABSENT
        return Verdict("full", depth=integer(reply[1]))

    def release(self) -> None:
        """Publish what was kept, or keep it again."""
        kept, self._kept, self._kept_bytes = self._kept, {}, 0
        for _, publish in kept.values():
            publish()

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None, waited: float, why: str = "cancelled"
    ) -> None:
        """Stop waiting for a shared call; it is cancelled when no other caller waits for it."""
        if self._drop(request.id):
            if on_fate is not None:
                on_fate("removed")
            return

        stream = self._stream_of.get(request.id)
        runs = self.followed[stream].call if stream is not None else request.id
        keys = (self._keys.queue(queue), self._keys.cancelled(queue), self._keys.shared(share_digest(request)))
        left = max(1, int((request.timeout + waited) * 1000))
        args = (entry or "0-1", runs, left, self._keys.wake(queue), why, request.id, self._keys.prefix, int(request.effect == "once"))
        _cancel(self._link, keys, args, request.id, on_fate)

    def forget(self, call: str) -> None:
        """Stop reading for a caller whose call has ended."""
        self._joined.pop(call, None)
        self._attempts.pop(call, None)
        self._drop(call)
        stream = self._stream_of.pop(call, None)
        if stream is not None:
            followed = self.followed[stream]
            (followed.callers if call in followed.callers else followed.newcomers).remove(call)
            if not (followed.callers or followed.newcomers):
                del self.followed[stream]

    def _drop(self, call: str) -> bool:
        """Publish a call no more that waits; return whether it did."""
        size, publish = self._kept.pop(call, (0, None))
        self._kept_bytes -= size
        return publish is not None

    def positions(self) -> list[tuple[bytes, bytes]]:
        """Return the streams of the read that begins now, each with the entry to read after.

        Callers that came since the last read need the whole stream, and the others drop what they have by its seq. A read that had begun
        before is not for newcomers, since it begins in the middle.
        """
        for followed in self.followed.values():
            if followed.newcomers:
                followed.callers += followed.newcomers
                followed.newcomers = []
                followed.position = b"0"
        return [(stream, followed.position) for stream, followed in self.followed.items()]

    def passed(self, stream: bytes, position: bytes) -> None:
        """Take note of how far a stream has been read."""
        followed = self.followed.get(stream)
        if followed is not None:
            followed.position = position

    def addressed(self, stream: bytes, frames: list[Frame]) -> list[Frame]:
        """Return the frames of a shared stream, once for each of this process's callers."""
        followed = self.followed.get(stream)
        if followed is None:
            return []
        mine = [frame for frame in frames if frame.id == followed.call]
        if mine and _ended_for_another(mine[-1]):
            self._publish_again(followed, mine[-1])
        return [_readdressed(frame, caller, self._attempts.get(caller, 0)) for caller in followed.callers for frame in mine]

    def _publish_again(self, followed: _Followed, end: Frame) -> None:
        """Publish again for who joined a call that ended for its first caller alone, and whose key is free.

        A caller whose own time is up as well has that end.
        """
        late, now = end.error is not None and end.error.code != NOT_BEGUN, time.monotonic()
        for caller in [*followed.callers, *followed.newcomers]:
            deadline, again = self._joined.get(caller, (0.0, None))
            if again is None or (late and deadline - now < _NO_TIME):
                continue
            before = self._attempts.get(caller, 0)
            self.forget(caller)
            # The attempts of one caller count up, or its newer run would seem to be an older one.
            self._attempts[caller] = before + end.attempt
            again(followed.call)

    def follow(self, call: str, runs: str) -> None:
        """Read the replies to the call ``runs`` from their start, as those of ``call``, until ``forget``."""
        stream = self._keys.call(runs).encode()
        followed = self.followed.get(stream)
        if followed is None:
            followed = self.followed[stream] = _Followed(runs)
        followed.newcomers.append(call)
        self._stream_of[call] = stream
        self._wake()


class Requests:
    """The requests of one agent: published at once, or, with an idempotency key, shared with the other callers of the key.

    Args:
        most: bytes of a request's document.

    Attributes:
        encode: encodes a request in the namespace's version.
    """

    def __init__(self, publisher: Publisher, shared: SharedCalls, most: int) -> None:
        self._publisher = publisher
        self._shared = shared
        self._most = most
        self.encode: Callable[..., bytes] = encode_request

    @property
    def refusal(self) -> str:
        """The refusal for which publications are written again; empty when there is none."""
        return next(itertools.chain(self._publisher.doubted.values(), self._shared.doubted.values()), "")

    def publish(self, request: Request, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        """Publish at the end of this tick, together with everything else published in it.

        While the server can't be reached it waits here, until ``deadline`` (local monotonic seconds).

        Raises:
            EnvelopeError: the request can't be encoded, or is too large.
        """
        document = self.encode(request, limit=self._most)
        session = session_digest(request.user, request.session) if request.ordered else ""
        if request.shared:
            if session:
                # What was published before it in this tick goes first.
                self._publisher.flush()
            self._shared.publish(request, queue, limit, deadline, document, sender, session)
            return
        self._publisher.publish(Publish(request.id, queue, limit, deadline, document, sender, request.effect == "once", session))

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: OnFate | None = None, *, waited: float = 0.0, why: str = "cancelled"
    ) -> None:
        """Remove a queued call, or tell the worker that runs it. Returns at once; ``on_fate`` hears what was found.

        ``waited`` are the seconds by which its deadline is later than its timeout says, ``why`` is the type of the error with which it
        ended for its caller.
        """
        if request.shared:
            self._shared.cancel(request, queue, entry, on_fate, waited, why)
            return
        left, once = int((request.timeout + waited) * 1000), request.effect == "once"
        self._publisher.cancel(request.id, queue, entry, left, on_fate, why, once=once)

    def forget(self, request: Request) -> None:
        """Stop listening for a call that has ended."""
        if request.shared:
            self._shared.forget(request.id)


_ENDS_OF_ANOTHER = frozenset({("cancelled", NOT_BEGUN), *(("deadline_exceeded", code) for code in (NOT_TAKEN, BEGAN_LATE, NOT_FINISHED))})


def _ended_for_another(frame: Frame) -> bool:
    """Return whether a shared call ended before it began, since no caller waited for it, or because its first caller's time was up."""
    error = frame.error
    return error is not None and frame.end_of_stream and (error.type, error.code) in _ENDS_OF_ANOTHER


def _readdressed(frame: Frame, call: str, attempts: int) -> Frame:
    """Return a shared call's frame for one of its callers, which had ``attempts`` attempts before."""
    if frame.id == call and not attempts:
        return frame
    return msgspec.structs.replace(frame, id=call, attempt=frame.attempt + attempts)
