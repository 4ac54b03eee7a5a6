"""A service's request stream, seen from one worker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Beginning, Delivery
from toolbus.broker.reading import integer
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.link import Link
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.replies import fields_of
from toolbus.envelope import address, decode_request, new_run
from toolbus.results import BrokerError, EnvelopeError
from toolbus.settings import Settings

GROUP = "g"
_MOST_HANDED_BACK = 256
DEAD_LETTER_LIMIT = 10_000
DEAD_LETTER_TTL = 7 * 86_400


class BadEntry(Exception):
    """An entry whose request can't be read; ``address`` is its (id, agent) when those can."""

    def __init__(self, entry: bytes, document: bytes, reason: str, attempt: int, fence: Fence) -> None:
        self.entry = entry
        self.fence = fence
        self.document = document
        self.reason = reason
        self.attempt = attempt
        self.address = address(document)
        super().__init__(reason)


class Fence(NamedTuple):
    """The state of a request stream's fence: the group's generation, and this consumer's counter.

    A delivery carries the state under which it was known to be ours. Equal to the server's, nothing has been moved since; a
    state that was learned later proves nothing about it, since the move may have been what changed the state.
    """

    generation: bytes
    counter: bytes

    @property
    def epoch(self) -> int:
        """How many times the consumer group has been made anew."""
        try:
            return integer(self.generation.partition(b".")[0])
        except EnvelopeError:
            return 0


UNSURE = b"?"
"""Equal to no counter, so that a script looks at every id."""


def common_fence(deliveries: Sequence[Delivery]) -> Fence:
    """The fence under which all of them are known to be ours, or ``UNSURE`` when there is none."""
    fence: Fence = deliveries[0].fence
    # The same object nearly always: what was taken together carries one.
    for delivery in deliveries:
        if delivery.fence is not fence and delivery.fence != fence:
            return Fence(fence.generation, UNSURE)
    return fence


def entries_of(deliveries: Iterable[Delivery]) -> list[bytes | int]:
    """Their entries, each with the number of its attempt: what scripts ask for that look at every one."""
    return [word for delivery in deliveries for word in (delivery.entry, delivery.attempt)]


Found = tuple[bytes, int, list[bytes] | None]
"""A stream entry: its id, its delivery number, and its fields, flat."""


class Entry(NamedTuple):
    """An entry that was moved to this consumer; ``owner`` had it until now. ``counted`` is 1 when its run is a further attempt.

    ``note`` says when its time is up, if its handler has waited for a person; see ``read_note``.
    """

    id: bytes
    delivered: int
    counted: int
    fields: list[bytes] | None
    owner: bytes
    note: bytes

    @property
    def attempt(self) -> int:
        """The number of the attempt that its run here is."""
        return self.delivered + self.counted


class Freed(NamedTuple):
    """An idempotency key that is free again: its record, if it stands for ``call``, unless ``mark`` is another run's than ``run``."""

    record: str
    call: str
    mark: str
    run: str


class Reaped(NamedTuple):
    """What was taken over, the fence under which it is ours, and whether this worker is to make room for what must run alone."""

    entries: list[Entry]
    fence: Fence
    left: bool


class RequestStream:
    """One service's requests as this consumer sees them: what it holds, and the fence it knows."""

    def __init__(
        self,
        keys: Keys,
        service: str,
        queue: str,
        consumer: str,
        clock: ServerClock,
        settings: Settings,
        on_lost: Callable[[Delivery], None],
    ) -> None:
        self.service = service
        self.queue = queue
        self.consumer = consumer
        self.key = keys.queue(queue)
        self.fence = keys.fence(queue)
        self.dead_letters = keys.dead_letters(queue)
        self.alone_from = settings.alone_from
        self.cancelled = keys.cancelled(queue)
        self.wake = keys.wake(queue)
        self.fence_known = Fence(b"", b"")
        self.held: dict[bytes, Delivery] = {}
        # How many requests the stream held, queued and running, when this worker last finished one.
        self.depth = 0
        self.paused = False
        self._paused_since = float("-inf")
        # Whether calls of one session go to one worker.
        self.sticky = False
        self._keys = keys
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        # Unique without a system call per run, which cost a tenth of a worker's time.
        self._runs_prefix = f"{new_run()}."
        self._runs = itertools.count()

    def pause(self, paused: bool, known: float) -> bool:
        """Take in whether the service was paused at a local monotonic time; True when that is news. What was known earlier says nothing."""
        if known < self._paused_since:
            return False
        news = paused != self.paused
        self.paused, self._paused_since = paused, known
        return news

    def fence_is(self, generation: bytes, counter: bytes) -> None:
        """Take in the fence's state. What was held under another generation is nobody's any more."""
        if generation != self.fence_known.generation and self.fence_known.generation:
            for delivery in [held for held in self.held.values() if held.fence.generation != generation]:
                self.lose(delivery)
        if self.fence_known != (generation, counter):
            self.fence_known = Fence(generation, counter)

    def lose(self, delivery: Delivery) -> None:
        """Let go of a delivery that is another worker's, or nobody's; one that is no longer held was let go, or is tried again."""
        if self.held.get(delivery.entry) is delivery:
            del self.held[delivery.entry]
            self._on_lost(delivery)

    def deliveries(self, entries: Iterable[Found], fence: Fence, set_aside: Callable[[BadEntry], None]) -> list[Delivery]:
        """Deliveries from stream entries, held from now on; ``fence`` was known before they were made, or with them.

        Entries whose request can't be read go to ``set_aside`` instead.
        """
        made: list[Delivery] = []
        held, keys, epoch, limit = self.held, self._keys, fence.epoch, self._settings.max_request + 1024
        now_ms, offset = self._clock.now_ms(), self._clock.offset
        for entry, attempt, fields in entries:
            document = server = b""
            try:
                # The order in which publish.lua writes them.
                if fields is not None and len(fields) == 4 and fields[0] == b"r" and fields[2] == b"d":
                    document, deadline_ms = fields[1], integer(fields[3])
                else:
                    found = fields_of(fields or ())
                    document, server = found.get(b"r", b""), found.get(b"s", b"")
                    deadline_ms = integer(found[b"d"])
                request = decode_request(document, limit=limit)
            except (EnvelopeError, KeyError) as error:
                reason = "the entry has no deadline" if isinstance(error, KeyError) else str(error)
                set_aside(BadEntry(entry, document, reason, attempt, fence))
                continue
            if entry in held:
                # Delivered once more, by a group that was made anew.
                self.lose(held[entry])
            delivery = held[entry] = Delivery(
                request,
                keys.call(request.id) if request.shared else keys.replies(request.agent) if request.agent else "",
                self,
                entry,
                fence,
                epoch,
                attempt,
                deadline_ms / 1000 - offset,
                max(0.0, now_ms - float(entry.partition(b"-")[0])),
                self._next_run(),
                server,
            )
            made.append(delivery)
        return made

    def pause_key(self, entry: bytes) -> str:
        """The key of the note that says when an entry's time is up."""
        return self._keys.pause(self.queue, entry.decode())

    def renewable(self, now: float) -> list[Delivery]:
        """Held deliveries whose deadline has not passed; safe to call from the lease thread."""
        # list() of a dict is one step under the interpreter's lock, so the loop can't change it meanwhile.
        return [delivery for delivery in list(self.held.values()) if delivery.deadline > now]

    def _next_run(self) -> str:
        return f"{self._runs_prefix}{next(self._runs):x}"

    async def reap(
        self, link: Link, live: str, pulse: str, slots: int, *, busy: bool, flexible: bool, handed_back_only: bool = False
    ) -> Reaped:
        """Take over what was handed back, entries of dead workers and lost replies.

        ``busy`` when this worker holds anything, ``flexible`` when it could make room for something that must run alone.
        """
        reply: Reply = await link.execute_script(
            scripts.REAP,
            (self.key, self.fence, live, pulse),
            (
                self.consumer,
                self.service,
                slots,
                int(self._settings.lease * 1000),
                int(handed_back_only),
                int(busy),
                self.alone_from,
                int(flexible),
                self.pause_key(b""),
            ),
        )
        generation, counter, taken, left = reply
        self.fence_is(generation, counter)
        return Reaped([entry for entry in itertools.starmap(Entry, taken) if self._is_news(entry)], self.fence_known, bool(left))

    def _is_news(self, entry: Entry) -> bool:
        held = self.held.get(entry.id)
        if held is None:
            return True
        if entry.owner == self.consumer.encode():
            # It was ours all the time and only looked as if nobody renewed it.
            return False
        self.lose(held)
        return True

    async def retry(self, link: Link, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a held delivery; None when it is no longer ours."""
        attempt = delivery.attempt + 1
        if not await self.count(link, delivery.entry, attempt, delivery.fence) or self.held.get(delivery.entry) is not delivery:
            return None
        again = self.held[delivery.entry] = delivery.again(attempt, self._next_run())
        return again

    async def count(self, link: Link, entry: bytes, attempt: int, fence: Fence) -> bool:
        """Say that an entry is about to run again, for the ``attempt``-th time; False when it is no longer ours."""
        args = (self.consumer, *fence, entry, attempt)
        return bool(await link.execute_script(scripts.COUNT, (self.key, self.fence), args, repeatable=True))

    async def hand_back(self, link: Link, deliveries: Sequence[Delivery]) -> None:
        """Give held deliveries to other workers, without counting an attempt."""
        for start in range(0, len(deliveries), _MOST_HANDED_BACK):
            part = [
                delivery
                for delivery in deliveries[start : start + _MOST_HANDED_BACK]
                if self.held.get(delivery.entry) is delivery and delivery.fence.generation == self.fence_known.generation
            ]
            for delivery in part:
                del self.held[delivery.entry]
            if part:
                args = (self.consumer, *common_fence(part), self.wake, self.service, *entries_of(part))
                await link.execute_script(scripts.HAND_BACK, (self.key, self.fence), args, repeatable=True)

    async def begin(self, replication: Replication, delivery: Delivery, mark: str) -> Beginning:
        """Set the started mark under the fence; ``started``, ``began``, ``unconfirmed`` or ``lost``."""
        left = max(0.0, delivery.deadline - time.monotonic()) + self._settings.retention
        reply, confirmed = await replication.run(
            scripts.START,
            (self.key, self.fence, mark),
            (self.consumer, *delivery.fence, delivery.entry, delivery.attempt, delivery.run, int(left * 1000)),
        )
        if reply == b"started":
            return "started" if confirmed else "unconfirmed"
        return "began" if reply == b"began" else "lost"

    def bury(
        self,
        link: Link,
        entry: bytes,
        fence: Fence,
        *,
        reason: str,
        attempts: int,
        error: str,
        document: bytes,
        replies: str,
        frames: bytes,
        frees: Freed | None = None,
    ) -> None:
        """Set an entry aside as a dead letter, with a frame for its caller when ``replies`` is known.

        ``frees`` is an idempotency key that is free again.
        """
        keys = (self.key, self.fence, self.dead_letters, *((frees.record, frees.mark) if frees else ()))
        args: tuple[Any, ...] = (self.consumer, *fence, entry, reason, attempts, error[:2000], document)
        limits = (DEAD_LETTER_LIMIT, DEAD_LETTER_TTL * 1000, replies, frames, *((frees.call, frees.run) if frees else ()))

        def done(reply: Reply) -> None:
            self.held.pop(entry, None)
            if isinstance(reply, BrokerError):
                telemetry.log.error("bury.refused", service=self.service, entry=entry.decode(), error=str(reply))
            else:
                telemetry.count("toolbus.dead_letters", messaging__destination__name=self.service)

        link.run(scripts.BURY, keys, args + limits, done, repeatable=True)
