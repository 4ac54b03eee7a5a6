"""A service's request stream, seen from one worker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.clock import ServerClock
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link, Reply
from toolbus.broker.protocols import Delivery
from toolbus.envelope import address, decode_request, new_run
from toolbus.results import BrokerError, EnvelopeError
from toolbus.settings import Settings

GROUP = "g"
DEAD_LETTER_LIMIT = 10_000
DEAD_LETTER_TTL = 7 * 86_400


class BadEntry(Exception):
    """An entry whose request can't be read; ``address`` is its (id, agent) when those can."""

    def __init__(self, entry: bytes, document: bytes, reason: str, attempt: int) -> None:
        self.entry = entry
        self.document = document
        self.reason = reason
        self.attempt = attempt
        self.address = address(document)
        super().__init__(reason)


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
        self.generation = b""
        self.counter = b""
        self.held: dict[bytes, Delivery] = {}
        self.paused = False
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        # Unique without a system call per run, which cost a tenth of a worker's time.
        self._runs_prefix = f"{new_run()}."
        self._runs = itertools.count()

    def fence_is(self, generation: bytes, counter: bytes) -> None:
        """Take in the fence's state. What was held under another generation is nobody's any more."""
        if generation != self.generation and self.generation:
            for delivery in [held for held in self.held.values() if held.generation != generation]:
                del self.held[delivery.entry]
                self._on_lost(delivery)
        self.generation = generation
        self.counter = counter

    def delivery(self, entry: bytes, fields: list[bytes] | None, attempt: int) -> Delivery:
        """A delivery from a stream entry, held from now on.

        :raises BadEntry: the request can't be read.
        """
        document = b""
        try:
            found = dict(zip(fields[::2], fields[1::2], strict=False)) if fields else {}
            document = found.get(b"r", b"")
            request = decode_request(document, limit=self._settings.max_request + 1024)
            deadline_ms = float(found[b"d"])
        except (EnvelopeError, KeyError, ValueError) as error:
            raise BadEntry(entry, document, str(error) or "the entry has no deadline", attempt) from None
        delivery = Delivery(
            request=request,
            queue=self,
            entry=entry,
            generation=self.generation,
            attempt=attempt,
            deadline=self._clock.local(deadline_ms),
            queued_ms=self._clock.age_ms(float(entry.partition(b"-")[0])),
            run=f"{self._runs_prefix}{next(self._runs):x}",
        )
        self.held[entry] = delivery
        return delivery

    def renewable(self, now: float) -> list[bytes]:
        """Ids of held entries whose deadline has not passed; safe to call from the lease thread."""
        # list() of a dict is one step under the interpreter's lock, so the loop can't change it meanwhile.
        return [delivery.entry for delivery in list(self.held.values()) if delivery.deadline > now]

    async def reap(self, link: Link, live: str, slots: int) -> Iterable[tuple[bytes, int, list[bytes] | None]]:
        """Take over entries of dead workers and lost replies; yields (id, attempt, fields)."""
        reply: Reply = await link.execute_script(
            scripts.REAP,
            (self.key, self.fence, live),
            (self.consumer, self.service, slots, int(self._settings.lease * 1000)),
        )
        generation, counter, taken = reply
        self.fence_is(generation, counter)
        return [(entry, attempt, fields) for entry, attempt, fields in taken if entry not in self.held]

    async def begin(self, link: Link, delivery: Delivery, mark: str) -> Literal["started", "began", "lost"]:
        """Set the started mark under the fence; ``started``, ``began`` or ``lost``."""
        left = max(0.0, delivery.deadline - time.monotonic()) + self._settings.retention
        reply = await link.execute_script(
            scripts.START,
            (self.key, self.fence, mark),
            (self.consumer, delivery.generation, self.counter, delivery.entry, delivery.run, int(left * 1000)),
            repeatable=True,
        )
        if reply == b"started":
            return "started"
        return "began" if reply == b"began" else "lost"

    def bury(
        self, link: Link, entry: bytes, *, reason: str, attempts: int, error: str, document: bytes, replies: str, frames: bytes
    ) -> None:
        """Set an entry aside as a dead letter, with a frame for its caller when ``replies`` is known."""
        keys = (self.key, self.fence, self.dead_letters)
        args: tuple[Any, ...] = (self.consumer, self.generation, self.counter, entry, reason, attempts, error[:2000], document)
        limits = (DEAD_LETTER_LIMIT, DEAD_LETTER_TTL * 1000, replies, frames)

        def done(reply: Reply) -> None:
            self.held.pop(entry, None)
            if isinstance(reply, BrokerError):
                telemetry.log.error("bury.refused", service=self.service, entry=entry.decode(), error=str(reply))
            else:
                telemetry.count("toolbus.dead_letters", messaging__destination__name=self.service)

        link.run(scripts.BURY, keys, args + limits, done, repeatable=True)
