"""Send frames, and finish requests with their last ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import DeadlineNotes
from toolbus.bus.broker.lease.dead_letters import FreedKey, bury
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import BadEntry, Delivery, Fence, RequestStream, common_fence, entries_of, epoch_of
from toolbus.bus.broker.take.sessions import Ownership, Snapshots
from toolbus.bus.broker.transport.command import REFUSES_ALL, Patience, Reply, ReplyError
from toolbus.bus.broker.transport.opening import Failing
from toolbus.bus.values.envelope import FRAMES_REFUSED, Frame, encode, join_frames, new_run, share_digest
from toolbus.bus.values.results import BrokerError, ErrorInfo

T = TypeVar("T")

# A script of 256 x 64 KB would block the server for 150 ms.
MOST_IDS = 256
"""Most ids in one script."""

MOST_BYTES = 262_144
"""Most bytes of frames in one script."""

Frames = dict[str, list[bytes]]
"""Frames by reply stream, in order."""

Batch = list[tuple[Delivery, bytes]]
"""Deliveries that are finished, each with its terminal frame."""

Part = list[tuple[str, list[bytes]]]
"""The frames that one script appends: for each reply stream those that become one entry."""


def size_of(frames: Frames) -> int:
    """Return the bytes of frames."""
    return sum([len(frame) for waiting in frames.values() for frame in waiting])


def sendable(frames: Part) -> list[Part]:
    """Return frames in parts, for one script each; large ones are split, in order."""
    parts: list[Part] = []
    room = 0
    for replies, waiting in frames:
        size = sum(map(len, waiting))
        if size <= room:
            parts[-1].append((replies, waiting))
            room -= size
            continue
        for packed in _parts(waiting, len, len(waiting)):
            parts.append([(replies, packed)])
            room = MOST_BYTES - sum(map(len, packed))
    return parts


def _parts(items: list[T], size_of: Callable[[T], int], most: int) -> list[list[T]]:
    """Return items in parts of so many at most, which one script may carry; one that is too large by itself is a part of its own."""
    if len(items) <= most and sum(map(size_of, items)) <= MOST_BYTES:
        return [items]
    parts: list[list[T]] = [[]]
    size = 0
    for item in items:
        if parts[-1] and (len(parts[-1]) == most or size + size_of(item) > MOST_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += size_of(item)
    return parts


_NO_FENCE = Fence(b"", b"")

# How much is written to a caller before it is asked how much of it is unread.
_MEASURE_EVERY_ENTRIES = 64
_MEASURE_EVERY_BYTES = 4 * 1024 * 1024
_MOST_WATCHED = 10_000
# The replies to a shared call are not trimmed while they are read.
_MOST_KEPT = 10
_CONGESTED = 4 * 1024 * 1024
# The link repeats what is refused for other passing reasons; what is refused for all it answers, since publishers must not wait.
_AGAIN_FIRST, _AGAIN_MOST = 0.05, 1.0


class _Written(msgspec.Struct):
    """The amount that this worker has written to one caller."""

    entries: int = 0
    bytes: int = 0
    unmeasured: int = 0


def _set() -> asyncio.Event:
    """Return an event that nobody has to wait for yet."""
    event = asyncio.Event()
    event.set()
    return event


class Outbox(WorkerStep, eq=False):
    """Sends frames and finishes deliveries over one link.

    Args:
        on_replies_gone: called when a reply stream is gone or over the limit.
        failing: told when calls could not be finished.
        server: the server, as operators know it.
    """

    on_replies_gone: Callable[[str, ErrorInfo], None]
    failing: Failing
    server: str = ""
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _frames: dict[RequestStream, Frames] = msgspec.field(default_factory=dict)
    _finished: dict[RequestStream, Batch] = msgspec.field(default_factory=dict)
    _packers: list[Callable[[], None]] = msgspec.field(default_factory=list)
    _operations: list[Callable[[], None]] = msgspec.field(default_factory=list)
    _then: list[Callable[[], None]] = msgspec.field(default_factory=list)
    _freed: dict[str, FreedKey] = msgspec.field(default_factory=dict)
    _written: dict[str, _Written] = msgspec.field(default_factory=dict)
    _queued_bytes: int = 0
    _room: asyncio.Event = msgspec.field(default_factory=_set)
    # Scripts of the flush that are not answered, and one for the flush itself while it is made.
    _in_flight: int = 0
    # True from the moment when a flush is scheduled until it is answered and nothing more waits.
    _flushing: bool = False
    _patience: Patience = msgspec.field(default_factory=Patience)
    _again_in: float = _AGAIN_FIRST
    _idle: asyncio.Event = msgspec.field(default_factory=_set)
    frames_sent: int = 0
    calls_finished: int = 0
    lost: int = 0

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Queue a frame that is not the last of its run; nobody gets those of a request without a reply stream."""
        if not delivery.replies:
            return
        by_replies = self._frames.get(delivery.queue)
        if by_replies is None:
            by_replies = self._frames[delivery.queue] = {}
        frames = by_replies.get(delivery.replies)
        if frames is None:
            frames = by_replies[delivery.replies] = []
        frames.append(frame)
        self._queued_bytes += len(frame)
        if self._queued_bytes > _CONGESTED:
            self._room.clear()
        self.flush_soon()

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` when the next flush begins: it sends what it gathered until then."""
        self._packers.append(pack)
        self.flush_soon()

    @property
    def congested(self) -> bool:
        """True when producers should wait for ``room`` before they send more."""
        return self._queued_bytes > _CONGESTED

    async def room(self) -> None:
        """Wait until what is queued has been handed to the server."""
        await self._room.wait()

    def finish(self, delivery: Delivery, frame: bytes, frees: FreedKey | None = None) -> None:
        """Queue a terminal frame, with the acknowledgement and removal of its request; ``frees`` is a key that is free again."""
        batch = self._finished.get(delivery.queue)
        if batch is None:
            batch = self._finished[delivery.queue] = []
        batch.append((delivery, frame))
        if frees is not None:
            self._freed[delivery.run] = frees
        if not self._flushing:
            self._flushing = True
            self._idle.clear()
            self._loop.call_soon(self._flush)

    def then(self, operation: Callable[[], None]) -> None:
        """Do something on the link after the frames that were queued until now."""
        self._operations.append(operation)
        self.flush_soon()

    async def drained(self) -> None:
        """Wait until everything queued is answered by the server."""
        await self._idle.wait()

    def flush_soon(self) -> None:
        """Flush behind the callbacks that are scheduled now, so that what new calls send in their first step leaves in its turn."""
        if not self._flushing:
            self._flushing = True
            self._idle.clear()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._in_flight += 1
        self.link.gather()
        try:
            self._send_all()
        finally:
            self.link.flush()
        self._answered()

    def _send_all(self) -> None:
        packers, self._packers = self._packers, []
        for pack in packers:
            pack()
        frames, self._frames = self._frames, {}
        finished, self._finished = self._finished, {}
        operations, self._operations = self._operations, []
        self._queued_bytes = 0
        self._room.set()
        for stream, batch in finished.items():
            self._finish_after(stream, frames.pop(stream, {}), batch)
        if frames:
            running = [item for by_replies in frames.values() for item in by_replies.items()]
            # No end waits for these frames.
            self._append(sendable(running), lambda: None, lambda _: None)
        self._then += operations

    def _answered(self) -> None:
        self._in_flight -= 1
        if self._in_flight:
            return
        operations, self._then = self._then, []
        for operation in operations:
            operation()
        if self._frames or self._finished or self._packers or self._operations:
            self._flush()
        else:
            self._flushing = False
            self._idle.set()

    def _put_off(self, error: BrokerError, again: Callable[[], None]) -> bool:
        """Do something again in a moment that the server refused for a reason that passes; False when it is to be given up."""
        if not (isinstance(error, ReplyError) and error.code in REFUSES_ALL):
            return False
        if not self._patience.holds(self.server, error):
            return False
        # The flush is not answered before that, so nothing overtakes it.
        self._in_flight += 1

        def now() -> None:
            again()
            self._answered()

        self._loop.call_later(self._again_in, now)
        self._again_in = min(self._again_in * 2, _AGAIN_MOST)
        return True

    def _accepted(self) -> None:
        if self._again_in > _AGAIN_FIRST:
            self._patience.end()
            self._again_in = _AGAIN_FIRST

    def _append(self, parts: list[Part], then: Callable[[], None], refused: Callable[[BrokerError], None]) -> None:
        """Append frames, part by part, and go on when that is done; ``refused`` when not all of them could be."""
        if not parts:
            then()
            return
        part, *further = parts
        args: list[str | bytes] = []
        for replies, frames in part:
            args += (replies, join_frames(frames))
        self._in_flight += 1

        def appended(reply: Reply) -> None:
            if not isinstance(reply, BrokerError):
                self._accepted()
                for replies, frames in part:
                    self.frames_sent += len(frames)
                    self._watch(replies, frames)
                for index in _within(reply, len(part)):
                    self._gone(part[index - 1][0])
                self._append(further, then, refused)
            elif not self._put_off(reply, lambda: self._append(parts, then, refused)):
                telemetry.log.error("frames.refused", agents=len(part), error=str(reply))
                # A call whose frames were dropped must not go on: its caller would wait for them.
                error = ErrorInfo("unavailable", FRAMES_REFUSED, f"the server took no more of this call's frames: {reply}")
                for replies in dict.fromkeys(replies for each in parts for replies, _ in each):
                    self.on_replies_gone(replies, error)
                refused(reply)
            self._answered()

        # Written again after a reconnect: the caller drops what it already has by its seq.
        # It names a key of the namespace, so that a cluster finds its slot.
        self.link.run(scripts.SEND, (self.keys.live,), tuple(args), appended, repeatable=True)

    def _watch(self, replies: str, frames: list[bytes]) -> None:
        # Frames travel in brackets, with commas between them.
        size = sum(map(len, frames)) + len(frames) + 1
        written = self._written.get(replies)
        if written is None:
            if len(self._written) > _MOST_WATCHED:
                self._written.clear()
            written = self._written[replies] = _Written()
        written.entries += 1
        written.bytes += size
        written.unmeasured += size
        if written.entries % _MEASURE_EVERY_ENTRIES == 0 or written.unmeasured > _MEASURE_EVERY_BYTES:
            written.unmeasured = 0
            average = written.bytes / written.entries
            self.link.send(("XLEN", replies), lambda length: self._measured(replies, length, average), repeatable=True)

    def _measured(self, replies: str, length: Reply, average: float) -> None:
        kept = replies.startswith(self.keys.call_prefix)
        most = _MOST_KEPT * self.settings.reply_limit if kept else self.settings.reply_limit
        if not isinstance(length, int) or (length <= most and length * average <= self.settings.reply_bytes):
            return
        size = f"{length} entries of {average:.0f} bytes"
        if kept:
            self.on_replies_gone(replies, ErrorInfo("tool_error", "output_limit", f"{size} are too much to be kept for later callers"))
        else:
            self.on_replies_gone(
                replies, ErrorInfo("slow_consumer", message=f"the caller leaves {size} unread (TOOLBUS_REPLY_LIMIT, _REPLY_BYTES)")
            )

    def _gone(self, replies: str) -> None:
        self._written.pop(replies, None)
        self.on_replies_gone(replies, ErrorInfo("cancelled", message="the calling agent is gone"))

    def _still_held(self, stream: RequestStream, batch: Batch) -> Batch:
        """Without what was lost meanwhile, which may look like ours again as a later delivery of the same entry."""
        holds = stream.held.get
        kept = [item for item in batch if holds(item[0].entry) is item[0]]
        if len(kept) < len(batch):
            self.lost += len(batch) - len(kept)
            for delivery, _ in batch:
                if holds(delivery.entry) is not delivery:
                    self._freed.pop(delivery.run, None)
        return kept

    def _finish_after(self, stream: RequestStream, frames: Frames, batch: Batch) -> None:
        """Finish a stream's calls together with, or else after, the frames that were queued before."""
        if not frames and len(batch) == 1:
            self._finish(stream, frames, batch)
            return
        parts = _parts(batch, lambda item: len(item[1]), MOST_IDS)
        if not frames or (len(parts) == 1 and size_of(frames) + sum([len(frame) for _, frame in batch]) <= MOST_BYTES):
            # Parts are of different calls, so they may overtake each other.
            for part in parts:
                self._finish(stream, frames, part)
            return
        self._append_before(stream, frames, batch, lambda: self._finish_after(stream, {}, batch))

    def _append_before(self, stream: RequestStream, frames: Frames, batch: Batch, then: Callable[[], None]) -> None:
        """Append frames that stand before ends; when they are refused, the ends must not be written, and others run the calls again."""
        self._append(sendable(list(frames.items())), then, lambda error: self._take_out(stream, batch, error))

    def _finish(self, stream: RequestStream, frames: Frames, batch: Batch) -> None:
        """Finish a batch in one step if the fence proves that all of it is ours, and entry by entry if not."""
        held, fence = stream.held, batch[0][0].fence if batch else _NO_FENCE
        by_replies: Frames = {}
        for replies, waiting in frames.items():
            by_replies[replies] = list(waiting)
        args: list[bytes | str | int] = [stream.consumer, *fence, len(batch)]
        proven = bool(batch) and not self._freed
        for delivery, frame in batch:
            if held.get(delivery.entry) is not delivery:
                self._finish(stream, frames, self._still_held(stream, batch))
                return
            # The same object nearly always: what was taken together carries one.
            proven = proven and (delivery.fence is fence or delivery.fence == fence)
            args.append(delivery.entry)
            if delivery.replies:
                by_replies.setdefault(delivery.replies, []).append(frame)
        if not proven:
            self._append_before(stream, frames, batch, lambda: self._finish_each(stream, batch))
            return
        for replies, joined in by_replies.items():
            args += (replies, join_frames(joined))
        self._in_flight += 1

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                if not self._put_off(reply, lambda: self._finish(stream, frames, batch)):
                    # The frames of other calls that went along were not written either.
                    self._append_before(stream, frames, batch, lambda: self._take_out(stream, batch, reply))
            elif len(reply) == 2:
                self._append_before(stream, frames, batch, lambda: self._finish_each(stream, batch))
            else:
                for replies, joined in by_replies.items():
                    self.frames_sent += len(joined)
                    self._watch(replies, joined)
                self._take_out(stream, batch, reply)
            self._answered()

        # Safe to write again after a reconnect: what was finished is no longer pending.
        self.link.run(scripts.FINISH, (stream.key, stream.fence), tuple(args), done, repeatable=True)

    def _finish_each(self, stream: RequestStream, batch: Batch) -> None:
        """Finish a batch of which not everything may be ours any more, or which frees idempotency keys."""
        batch = self._still_held(stream, batch)
        if not batch:
            return
        by_replies: dict[str, list[bytes | int]] = {}
        ends: Frames = {}
        by_key: dict[str, list[bytes | int]] = {}
        keys = [stream.key, stream.fence]
        for index, (delivery, frame) in enumerate(batch, 1):
            if delivery.replies:
                by_replies.setdefault(delivery.replies, []).extend((index, frame))
                ends.setdefault(delivery.replies, []).append(frame)
            frees = self._freed.get(delivery.run)
            if frees is not None:
                keys += (frees.record, frees.mark)
                by_key[f"!{len(keys) - 1}"] = [index, frees.call.encode(), index, frees.run.encode()]
        deliveries = [delivery for delivery, _ in batch]
        args: list[bytes | str | int] = [stream.consumer, *common_fence(deliveries), len(batch), *entries_of(deliveries)]
        # Keys come first: looking at one can fail, and then nothing has been written yet.
        for replies, indexed in (*by_key.items(), *by_replies.items()):
            args += (replies, len(indexed) // 2)
            args.extend(indexed)
        self._in_flight += 1

        def done(reply: Reply) -> None:
            if not isinstance(reply, BrokerError) or not self._put_off(reply, lambda: self._finish_each(stream, batch)):
                for delivery, _ in batch:
                    self._freed.pop(delivery.run, None)
                if not isinstance(reply, BrokerError):
                    lost = _within(reply[2], len(batch))
                    self.frames_sent += sum([index not in lost for index, delivery in enumerate(deliveries, 1) if delivery.replies])
                    for replies, frames in ends.items():
                        self._watch(replies, frames)
                self._take_out(stream, batch, reply)
            self._answered()

        self.link.run(scripts.FINISH_EACH, tuple(keys), tuple(args), done, repeatable=True)

    def _take_out(self, stream: RequestStream, batch: Batch, reply: Reply) -> None:
        if isinstance(reply, BrokerError):
            # The requests stay pending under our name without renewal, so they are recovered.
            for delivery, _ in batch:
                stream.let_go(delivery)
            telemetry.log.error("finish.refused", service=stream.service, calls=len(batch), error=str(reply))
            if isinstance(reply, ReplyError):
                self.failing.refused(str(reply))
            return
        self.failing.since = None
        self._accepted()
        generation, counter, lost, gone, stream.depth = reply
        gone_elsewhere = _within(lost, len(batch))
        held = stream.held
        for index, (delivery, _) in enumerate(batch, 1):
            if delivery.request.ordered:
                stream.let_go(delivery, ended=index not in gone_elsewhere)
            elif held.get(delivery.entry) is delivery:
                # As let_go does: a call of most deliveries would only cost time.
                del held[delivery.entry]
        if stream.fence_known != (generation, counter):
            stream.fence_is(generation, counter)
        self.lost += len(gone_elsewhere)
        self.calls_finished += len(batch) - len(gone_elsewhere)
        for index in gone_elsewhere:
            self.listener.on_lost(batch[index - 1][0])
        for key in gone:
            self._gone(key.decode("utf-8", "replace"))


def _within(indexes: list[int], most: int) -> list[int]:
    """Return the numbers by which a script may have named what it was given, from 1 to ``most``."""
    return [index for index in indexes if 0 < index <= most] if indexes else indexes


class Endings(WorkerStep, eq=False):
    """Ends deliveries for which a last frame is not enough.

    Args:
        start: runs a coroutine beside the others.

    Attributes:
        malformed: how many requests could not be read.
    """

    outbox: Outbox
    ownership: Ownership
    snapshots: Snapshots
    notes: DeadlineNotes
    start: Callable[[Coroutine[Any, Any, None]], None]
    # Runs that have ended, and whose sessions are asked about, or lose their snapshots.
    _unsettled: int = 0
    _settled: asyncio.Event = msgspec.field(default_factory=_set)
    malformed: int = 0

    async def settled(self) -> None:
        """Wait until the ends of all ended runs wait for nothing: it is known whose their sessions are, and snapshots are forgotten."""
        await self._settled.wait()

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False, forgets: bool = False) -> None:
        """Send the last frame and remove the request, if it is still ours, and its session is.

        ``frees`` when the call failed and this run did nothing that must not happen twice: then the answer is not kept for later callers
        with the same idempotency key, unless an earlier attempt began ``once`` work. ``forgets`` when the snapshot of its session is out of
        date: it is forgotten first, since nobody may do that for a call that has ended.
        """
        if not (frees or delivery.noted or delivery.queue.sticky):
            self.outbox.finish(delivery, frame)
        elif delivery.queue.sticky and (forgets or self.ownership.doubts(delivery)):
            self.start(self._finish_in_session(delivery, frame, frees, forgets))
        else:
            self._finish(delivery, frame, frees)

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame, after what the run has sent."""

        def now() -> None:
            frames, document, frees = join_frames([frame]), encode(delivery.request), self._freed(delivery)
            own = (delivery.queue, delivery.entry, delivery.fence)
            bury(self.link, *own, reason, delivery.attempt, error, document, delivery.replies, frames, frees, written)

        def written() -> None:
            self.outbox.frames_sent += bool(delivery.replies)

        self.outbox.then(now)
        self._drop_note(delivery)

    def set_aside(self, stream: RequestStream, bad: BadEntry) -> None:
        """Make a dead letter of an entry whose request can't be read, and answer its caller if that is known."""
        self.malformed += 1
        telemetry.log.error("request.malformed", service=stream.service, entry=bad.entry.decode(), error=bad.reason)
        replies, frames = "", b""
        if bad.address is not None:
            call, agent = bad.address
            error = ErrorInfo("invalid_arguments", "malformed_request", bad.reason)
            frame = Frame(call, new_run(), bad.attempt, kind="end", end_of_stream=True, error=error, worker=self.instance)
            frame.epoch = epoch_of(bad.fence.generation)
            replies, frames = self.keys.replies(agent), join_frames([encode(frame)])
        bury(self.link, stream, bad.entry, bad.fence, "malformed", bad.attempt, bad.reason, bad.document, replies, frames)

    def _finish(self, delivery: Delivery, frame: bytes, frees: bool) -> None:
        self.outbox.finish(delivery, frame, self._freed(delivery) if frees else None)
        self._drop_note(delivery)

    async def _finish_in_session(self, delivery: Delivery, frame: bytes, frees: bool, forgets: bool) -> None:
        self._unsettled += 1
        self._settled.clear()
        try:
            if forgets:
                await self.snapshots.forget(delivery)
            # Once another worker has answered in the session, a result computed from its state here must not be sent.
            if not self.ownership.doubts(delivery) or await self.ownership.holds_at_end(delivery):
                self._finish(delivery, frame, frees)
        finally:
            self._unsettled -= 1
            if not self._unsettled:
                self._settled.set()

    def _freed(self, delivery: Delivery) -> FreedKey | None:
        """Return the idempotency key that is free again when a delivery fails, if it has one."""
        request, server = delivery.request, self.link.server
        if not request.shared:
            return None
        if delivery.server and (server is None or server.run_id.encode() != delivery.server):
            # This server may lack the mark that would say that an earlier attempt began.
            return None
        return FreedKey(self.keys.shared(share_digest(request)), request.id, self.keys.started(request.id), delivery.run)

    def _drop_note(self, delivery: Delivery) -> None:
        if delivery.noted:
            self.outbox.then(lambda: self.notes.drop(delivery))
