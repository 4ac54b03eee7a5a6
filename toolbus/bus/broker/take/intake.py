"""The intake of a worker: it takes requests from the streams of its services."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.lease.recover import MAY_BE_ABANDONED_MS, AbandonedCalls, Upkeep, hand_back
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import GROUP, BadEntry, Delivery, Fence, RequestStream, epoch_of, log_delivered_again
from toolbus.bus.broker.take.sessions import Ownership
from toolbus.bus.broker.transport.command import ReplyError, fields_of
from toolbus.bus.broker.transport.connection import BLOCK
from toolbus.bus.broker.transport.links import Links
from toolbus.bus.broker.transport.opening import Failing
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.envelope import EntryNumbers, decode_request, numbers_of
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, EnvelopeError

_RETRY = 0.2
# Seconds after which a read that was told to end and still waits is told again.
_UNBLOCK_AGAIN = 0.05
_LOOK_AGAIN = 0.01
# A worker that takes everything at once leaves caller, server and worker waiting for each other in turn. Half of what there is keeps all
# three busy: at 64 in flight parts of 32 gave 32,100 calls/s and parts of 64 28,000; at 256, 32,200 and 41,200.
_LEAST_PART, _MOST_PART = 32, 128
# Where sessions stay where they begin, a burst of new ones is to spread over the workers.
_GAINING_PART = 8
# Milliseconds since 1970 have 13 digits for some centuries.
_MOST_DIGITS = 15

_is_id = re.compile(rb"\d{1,20}-\d{1,20}").fullmatch


def deliveries(stream: RequestStream, entries: Iterable[Sequence[Any]], fence: Fence, attempt: int = 1) -> list[Delivery]:
    """Make deliveries of stream entries, held from now on; entries whose request can't be read are set aside instead.

    Args:
        stream: the stream that they are of.
        entries: the id of each, and its fields, flat.
        fence: as it was known before they were delivered, or with them.
        attempt: the number of their delivery.
    """
    made: list[Delivery] = []
    held, keys, epoch, limit = stream.held, stream.keys, epoch_of(fence.generation), stream.most_document
    reply_prefix, run_prefix, run_numbers = keys.reply_prefix, stream.run_prefix, stream.run_numbers
    offset = stream.clock.offset
    now_ms = (stream.clock.monotonic() + offset) * 1000
    for entry, fields in entries:
        document = server = after = b""
        try:
            # The order in which publish.lua writes them.
            if fields is not None and len(fields) == 4 and fields[0] == b"r" and fields[2] == b"d":
                document, due = fields[1], fields[3]
            else:
                found = fields_of(fields or ())
                document, server, after = found.get(b"r", b""), found.get(b"s", b""), found.get(b"p", b"")
                due = found[b"d"]
            deadline_ms = int(due) if due.isdigit() and len(due) <= _MOST_DIGITS else integer(due)
            request = decode_request(document, limit=limit)
        except (EnvelopeError, KeyError) as error:
            reason = "the entry has no deadline" if isinstance(error, KeyError) else str(error)
            stream.set_aside(stream, BadEntry(entry, document, reason, attempt, fence))
            continue
        if entry in held:
            # Delivered once more, by a group that was made anew.
            stream.lose(held[entry])
        delivery = held[entry] = Delivery(
            request,
            keys.call(request.id) if request.shared else f"{reply_prefix}{request.agent}" if request.agent else "",
            entry,
            epoch,
            attempt,
            deadline_ms / 1000 - offset,
            max(0.0, now_ms - float(entry.partition(b"-")[0])),
            f"{run_prefix}{next(run_numbers):x}",
            queue=stream,
            fence=fence,
            server=server,
            after=after if _is_id(after) else b"",
        )
        made.append(delivery)
    return made


class Batch(NamedTuple):
    """The entries that one read found, the streams that could not be read and their errors, and whether its connection was lost."""

    found: list[tuple[RequestStream, Sequence[Any]]]
    refused: list[tuple[RequestStream, str]]
    lost: bool = False


class Intake(WorkerStep, eq=False):
    """Reads the request streams of one worker, and keeps no more of them than it can run.

    A read that waits always waits for every stream, so that it needs no waking when slots become free. ``COUNT`` is for each stream: with
    fewer slots than streams, or when a stream had more than it could be given, a script takes by turns what is there, and a read waits only
    when there was nothing. What comes beyond the slots goes back to the other workers at once.

    Args:
        register_again: registers services whose consumer group is missing.
        failing: told when no requests could be taken.
    """

    links: Links
    upkeep: Upkeep
    abandoned: AbandonedCalls
    ownership: Ownership
    register_again: Callable[[list[str]], Awaitable[None]]
    failing: Failing
    _last_beat: float = 0.0
    _unbeaten: str = ""
    _refusal: str = ""
    _at_replica: bool = False
    _interrupted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _reading: bool = False
    _reads: int = 0
    _again: asyncio.TimerHandle | None = None
    # Which of the streams has the first turn, and whether one of them may hold more than was taken of it.
    _first: int = 0
    _more: bool = False
    # How many of them had something at the last read.
    _busy: int = 1

    def __post_init__(self) -> None:
        self._last_beat = self.clock.monotonic()

    async def take(self, slots: int) -> list[Delivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""
        if self._interrupted.is_set():
            self._interrupted.clear()
            return []
        if self.upkeep.postponed and self.upkeep.has_postponed:
            # Requests that it starts take slots, so read nothing with the old number.
            await self.upkeep.reap_postponed()
            return []
        # As they are known before anything is delivered: a later fence may be the result of losing it again, and a later position may be
        # that of what this read delivers.
        known: dict[RequestStream, tuple[Fence, EntryNumbers]] = {}
        for stream in self.streams.values():
            if not (stream.paused or stream.leaving or stream.unlisted):
                known[stream] = (stream.fence_known, stream.newest)
        connected = self.links.blocking.connected
        # Without a beat for a lease, others take over what this worker has, and would take over at once what it takes now. The lease thread
        # says why.
        if not known or not connected or self._at_replica or self._has_no_lease:
            await self._hold_off(bool(known))
            return []
        batch = await self._read(list(known), slots)
        taken: list[Delivery] = []
        for stream, found in batch.found:
            # Entries come in order, so the first and the last tell of all.
            fence, before = known[stream]
            first, last = numbers_of(found[0][0]), numbers_of(found[-1][0])
            entries = await self._new(stream, found, before) if first <= min(before, stream.newest) else found
            stream.newest = max(stream.newest, last)
            taken += deliveries(stream, entries, fence)
        if batch.lost or batch.refused:
            await self._restore(batch)
        else:
            self.failing.since, self._refusal = None, ""
        if not taken:
            return []
        # A stream gives its oldest entry first.
        if taken[0].queued_ms > MAY_BE_ABANDONED_MS or (
            len(batch.found) > 1 and any(delivery.queued_ms > MAY_BE_ABANDONED_MS for delivery in taken)
        ):
            taken = await self.abandoned.without(taken)
        # A worker that leaves finishes what it was still given.
        room = self.listener.free_slots() if self.upkeep.taking else slots
        if len(taken) > room:
            # The oldest ones stay; the others go back before a session is theirs.
            taken.sort(key=lambda delivery: delivery.queued_ms, reverse=True)
            self.links.start(self._hand_back(taken[room:]))
            taken = taken[:room]
        # Last, since what it finds out holds for this moment.
        return await self.ownership.settle(taken) if self.ownership.serves else taken

    def beaten(self, asked: float) -> None:
        """Take note of a beat that succeeded, sent at that local monotonic time: the lease runs from then on."""
        if self._unbeaten and self._has_no_lease:
            self.failing.since = None
        self._last_beat, self._unbeaten, self._at_replica = asked, "", False

    def demoted(self) -> None:
        """Take nothing, since the server is a replica, until a beat succeeds: connections come back sooner."""
        self._at_replica = True

    def unbeaten(self, why: str) -> None:
        """Take note of a beat that failed; a read that the server does not refuse but never answers is no sign of that."""
        self._unbeaten = why
        if self._has_no_lease:
            self._miss(self.trouble)

    @property
    def trouble(self) -> str:
        """Why nothing can be taken now; empty when that is possible."""
        if self._has_no_lease:
            return f"its lease has ended, since its beats fail: {self._unbeaten or 'they are not answered'}"
        return self._unlisted or (self._refusal and f"the server refuses to give it requests: {self._refusal}")

    @property
    def _unlisted(self) -> str:
        """Why the registry lists this worker for no service; empty while it lists one, be it paused."""
        streams = [stream for stream in self.streams.values() if not stream.leaving]
        if not streams or not all(stream.unlisted for stream in streams):
            return ""
        return "; ".join(f"{stream.service} is not in the registry: {stream.unlisted}" for stream in streams)

    @property
    def _has_no_lease(self) -> bool:
        return self.clock.monotonic() - self._last_beat > self.settings.lease

    async def passed(self) -> None:
        """Wait until a read that is under way has ended: it may bring requests of streams that are no longer read."""
        reads = self._reads
        while self._reading and self._reads == reads:
            self.interrupt()
            await asyncio.sleep(_LOOK_AGAIN)

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now. Cancelling it instead could orphan what was just delivered."""
        self._interrupted.set()
        self._unblock()

    def abort(self) -> None:
        """Give up the connection of a read that does not end."""
        if self._reading:
            self.links.blocking.abort()

    async def pause(self) -> None:
        """Wait a moment, or until ``interrupt``."""
        await at_most(_RETRY, self._interrupted.wait())

    # -- reading ----------------------------------------------------------------------------------

    async def _read(self, streams: list[RequestStream], slots: int) -> Batch:
        """Read what is there of all streams, or wait for it."""
        self._reading = True
        self._reads += 1
        try:
            if len(streams) > 1 and (self._more or slots < len(streams)):
                batch = await self._sweep(streams, slots)
                self._more = bool(batch.found)
                if batch.found or batch.refused or self.upkeep.has_postponed or self._interrupted.is_set():
                    return batch
            deepest = 0
            by_key: dict[bytes, RequestStream] = {}
            for stream in streams:
                deepest = max(deepest, stream.depth)
                by_key[stream.key_read] = stream
            # The streams that had something at the last read are likely to be all that have something now. Where many calls run at once,
            # up to as many again may come too much: a script for each further part costs more than to hand back what seldom comes.
            wanted = min(slots // self._busy, self._part(deepest))
            most = slots * 2 if slots >= _LEAST_PART else slots
            count = max(1, min(wanted, most // len(streams)))
            command = ("XREADGROUP", "GROUP", GROUP, self.instance, "COUNT", count, "BLOCK", int(BLOCK * 1000), "STREAMS")
            reply = await self.links.blocking.execute(*command, *by_key, *([">"] * len(streams)))
        except BrokerUnavailable:
            return Batch([], [], lost=True)
        except ReplyError as error:
            return Batch([], [(stream, str(error)) for stream in streams])
        else:
            batch = Batch([], [])
            if reply:
                self._more = False
                for key, entries in reply.items() if isinstance(reply, dict) else reply:
                    if key in by_key:
                        batch.found.append((by_key[key], entries))
                        self._more = self._more or (len(entries) >= count and count < wanted)
                self._busy = max(1, len(batch.found))
            return batch
        finally:
            self._reading = False
            if self._again is not None:
                self._again.cancel()
                self._again = None

    async def _sweep(self, streams: list[RequestStream], slots: int) -> Batch:
        """Take what is there, by turns, without waiting."""
        self._first %= len(streams)
        streams = streams[self._first :] + streams[: self._first]
        most = min(slots, self._part(sum(stream.depth for stream in streams)))
        last, *results = await self.links.blocking.execute_script(
            scripts.TAKE, tuple(stream.key for stream in streams), (self.instance, most)
        )
        self._first += last
        batch = Batch([], [])
        for stream, result in zip(streams, results, strict=True):
            if isinstance(result, bytes):
                batch.refused.append((stream, result.decode("utf-8", "replace")))
            elif result:
                batch.found.append((stream, result))
        return batch

    def _part(self, depth: int) -> int:
        """Return how many requests to take at once from streams that hold ``depth``."""
        part = max(_LEAST_PART, min(depth // 2, _MOST_PART))
        return min(part, _GAINING_PART) if self.ownership.gaining else part

    async def _hold_off(self, may_read: bool) -> None:
        """Wait a moment before the next try, and take in why nothing can be taken."""
        if may_read and not self.links.blocking.connected:
            self._miss_connection()
        elif not may_read and self._unlisted:
            self._miss(self._unlisted)
        elif not may_read and not self._has_no_lease:
            # All are paused, and nothing else is in the way.
            self.failing.since = None
        await self.pause()

    async def _restore(self, batch: Batch) -> None:
        """Do what can be done so that the next read is not lost or refused as this one was."""
        refused = batch.refused
        missing = [stream.service for stream, error in refused if error.startswith("NOGROUP")]
        if batch.lost:
            self._miss_connection()
        elif not self.upkeep.taking:
            return
        elif missing:
            telemetry.log.warning("requests.group_missing", error=refused[0][1])
            again = self.failing.since is not None
            self._miss(refused[0][1])
            if again:
                # The server has refused to make it.
                await self.pause()
            await self.register_again(missing)
        else:
            if refused[0][1] != self._refusal:
                # Each further try would repeat it.
                self._refusal = refused[0][1]
                telemetry.log.error("requests.take_failed", error=self._refusal)
            self._miss(self._refusal)
            await self.pause()

    def _miss_connection(self) -> None:
        self._miss("the connection that waits for them is lost or can't be made")

    def _miss(self, why: str) -> None:
        """Take in that nothing can be taken; when the connection for writing is gone as well, the server is, and comes back."""
        if not self.link.connected:
            self.failing.since = None
        elif self.upkeep.taking:
            # What callers still wait for may be answered when the server accepts it again.
            now = self.clock.monotonic()
            owes = any(each.deadline > now for stream in self.streams.values() for each in stream.held.values())
            self.failing.refused(why, may_end=not owes)

    async def _new(self, stream: RequestStream, entries: Sequence[Any], before: EntryNumbers) -> Sequence[Any]:
        """Return the entries that had not been delivered before.

        The group was set back. Whoever holds the others renews and finishes them; those that nobody renews are taken over after a lease.
        """
        with contextlib.suppress(BrokerError):
            generation = await self.link.execute("HGET", stream.fence, "generation", repeatable=True)
            if generation != stream.fence_known.generation:
                # It was made anew, and what was held under it is lost.
                stream.newest = ()
                return entries
        passed = min(before, stream.newest)
        new = [each for each in entries if numbers_of(each[0]) > passed]
        log_delivered_again(stream, len(entries) - len(new))
        return new

    async def _hand_back(self, deliveries: list[Delivery]) -> None:
        try:
            await hand_back(self.link, deliveries)
        except BrokerError as error:
            # Their leases run out, and they are taken over all the same.
            telemetry.log.warning("requests.hand_back_failed", error=str(error))

    def _unblock(self) -> None:
        if not self._reading:
            return
        server = self.links.blocking.server
        if server is not None and self.link.connected:
            self.link.send(("CLIENT", "UNBLOCK", server.client_id))
        # It goes over another connection, and may overtake the read that it is to end.
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(_UNBLOCK_AGAIN, self._unblock)
