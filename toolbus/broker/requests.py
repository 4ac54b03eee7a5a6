"""A service's request stream, seen from one worker."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.clock import ServerClock
from toolbus.broker.command import Reply
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link
from toolbus.broker.protocols import Beginning, Delivery
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


# Equal to no counter, so that a script looks at every id.
_UNSURE = b"?"


def common_fence(deliveries: Sequence[Delivery]) -> Fence:
    """The fence under which all of them are known to be ours, or ``UNSURE`` when there is none."""
    fence: Fence = deliveries[0].fence
    return fence if all(delivery.fence == fence for delivery in deliveries) else Fence(fence.generation, _UNSURE)


@functools.lru_cache(maxsize=256)
def _epoch(generation: bytes) -> int:
    number = generation.partition(b".")[0]
    return int(number) if number.isdigit() else 0


class Entry(NamedTuple):
    """An entry that was moved to this consumer; ``owner`` had it until now."""

    id: bytes
    attempt: int
    fields: list[bytes] | None
    owner: bytes


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
        self.cancelled = keys.cancelled(queue)
        self.wake = keys.wake(queue)
        self.fence_known = Fence(b"", b"")
        self.held: dict[bytes, Delivery] = {}
        self.paused = False
        self._keys = keys
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        # Unique without a system call per run, which cost a tenth of a worker's time.
        self._runs_prefix = f"{new_run()}."
        self._runs = itertools.count()

    def fence_is(self, generation: bytes, counter: bytes) -> None:
        """Take in the fence's state. What was held under another generation is nobody's any more."""
        if generation != self.fence_known.generation and self.fence_known.generation:
            for delivery in [held for held in self.held.values() if held.fence.generation != generation]:
                self.lose(delivery)
        if self.fence_known != (generation, counter):
            self.fence_known = Fence(generation, counter)

    def lose(self, delivery: Delivery) -> None:
        """Let go of a delivery that is another worker's, or nobody's."""
        if self.held.get(delivery.entry) is delivery:
            del self.held[delivery.entry]
        self._on_lost(delivery)

    def delivery(self, entry: bytes, fields: list[bytes] | None, attempt: int, fence: Fence) -> Delivery:
        """A delivery from a stream entry, held from now on; ``fence`` was known before it was made, or with it.

        :raises BadEntry: the request can't be read.
        """
        document = b""
        try:
            found = dict(zip(fields[::2], fields[1::2], strict=False)) if fields else {}
            document = found.get(b"r", b"")
            request = decode_request(document, limit=self._settings.max_request + 1024)
            deadline_ms = float(found[b"d"])
        except (EnvelopeError, KeyError, ValueError) as error:
            raise BadEntry(entry, document, str(error) or "the entry has no deadline", attempt, fence) from None
        delivery = Delivery(
            request=request,
            replies=self._keys.call(request.id) if request.shared else self._keys.replies(request.agent) if request.agent else "",
            queue=self,
            entry=entry,
            fence=fence,
            epoch=_epoch(fence.generation),
            attempt=attempt,
            deadline=self._clock.local(deadline_ms),
            queued_ms=self._clock.age_ms(float(entry.partition(b"-")[0])),
            run=self._next_run(),
            server=found.get(b"s", b""),
        )
        if entry in self.held:
            # Delivered once more, by a group that was made anew.
            self.lose(self.held[entry])
        self.held[entry] = delivery
        return delivery

    def renewable(self, now: float) -> list[Delivery]:
        """Held deliveries whose deadline has not passed; safe to call from the lease thread."""
        # list() of a dict is one step under the interpreter's lock, so the loop can't change it meanwhile.
        return [delivery for delivery in list(self.held.values()) if delivery.deadline > now]

    def _next_run(self) -> str:
        return f"{self._runs_prefix}{next(self._runs):x}"

    async def reap(self, link: Link, live: str, pulse: str, slots: int, *, busy: bool, flexible: bool, handed_back_only: bool = False) -> Reaped:
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
                self._settings.alone_from,
                int(flexible),
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
        attempt = await link.execute_script(
            scripts.RETRY, (self.key, self.fence), (self.consumer, *delivery.fence, delivery.entry), repeatable=True
        )
        if not attempt or self.held.get(delivery.entry) is not delivery:
            return None
        again = self.held[delivery.entry] = delivery.again(int(attempt), self._next_run())
        return again

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
                args = (self.consumer, *common_fence(part), self.wake, self.service, *(each.entry for each in part))
                await link.execute_script(scripts.HAND_BACK, (self.key, self.fence), args, repeatable=True)

    async def begin(self, link: Link, delivery: Delivery, mark: str) -> Beginning:
        """Set the started mark under the fence; ``started``, ``began`` or ``lost``."""
        left = max(0.0, delivery.deadline - time.monotonic()) + self._settings.retention
        reply = await link.execute_script(
            scripts.START,
            (self.key, self.fence, mark),
            (self.consumer, *delivery.fence, delivery.entry, delivery.run, int(left * 1000)),
            repeatable=True,
        )
        if reply == b"started":
            return "started"
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
    ) -> None:
        """Set an entry aside as a dead letter, with a frame for its caller when ``replies`` is known."""
        keys = (self.key, self.fence, self.dead_letters)
        args: tuple[Any, ...] = (self.consumer, *fence, entry, reason, attempts, error[:2000], document)
        limits = (DEAD_LETTER_LIMIT, DEAD_LETTER_TTL * 1000, replies, frames)

        def done(reply: Reply) -> None:
            self.held.pop(entry, None)
            if isinstance(reply, BrokerError):
                telemetry.log.error("bury.refused", service=self.service, entry=entry.decode(), error=str(reply))
            else:
                telemetry.count("toolbus.dead_letters", messaging__destination__name=self.service)

        link.run(scripts.BURY, keys, args + limits, done, repeatable=True)
