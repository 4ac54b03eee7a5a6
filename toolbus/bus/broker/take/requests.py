"""A service's request stream, seen from one worker."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.support.latest import Latest
from toolbus.bus.values.envelope import EntryNumbers, Request, address, new_run, numbers_of
from toolbus.bus.values.results import EnvelopeError
from toolbus.bus.values.settings import Settings

GROUP = "g"


class Fence(NamedTuple):
    """The state of a request stream's fence: the group's generation, and this consumer's counter.

    A delivery carries the state under which it was known to be ours. Equal to the server's, nothing has been moved since; a
    state that was learned later proves nothing about it, since the move may have been what changed the state.
    """

    generation: bytes
    counter: bytes


@functools.lru_cache(64)
def epoch_of(generation: bytes) -> int:
    """Return how many times the consumer group has been made anew."""
    try:
        return integer(generation.partition(b".")[0])
    except EnvelopeError:
        return 0


@functools.lru_cache(64)
def newest_before(generation: bytes) -> EntryNumbers:
    """Return the numbers of the newest entry that was there when the group was made; none if there was none, or that is not known."""
    try:
        return numbers_of(generation.split(b".")[2])
    except (IndexError, ValueError):
        return ()


UNSURE = b"?"
"""Equal to no counter, so that a script looks at every id."""


def common_fence(deliveries: Sequence[Delivery]) -> Fence:
    """Return the fence under which all of them are known to be this worker's, or one that is ``UNSURE``."""
    fence: Fence = deliveries[0].fence
    # The same object nearly always: what was taken together carries one.
    for delivery in deliveries:
        if delivery.fence is not fence and delivery.fence != fence:
            return Fence(fence.generation, UNSURE)
    return fence


def entries_of(deliveries: Iterable[Delivery]) -> list[bytes | int]:
    """Return their entries, each with the number of its attempt, for scripts that look at every one."""
    return [word for delivery in deliveries for word in (delivery.entry, delivery.attempt)]


def log_delivered_again(stream: RequestStream, calls: int) -> None:
    """Log that a group was set back."""
    telemetry.log.error("requests.delivered_again", service=stream.service, calls=calls)


class BadEntry(NamedTuple):
    """An entry whose request can't be read."""

    entry: bytes
    document: bytes
    reason: str
    attempt: int
    fence: Fence

    @property
    def address(self) -> tuple[str, str] | None:
        """The ids of its call and agent, when those can be read."""
        return address(self.document)


class Delivery(msgspec.Struct, eq=False):
    """One request handed to this worker, under a run token of its own.

    Attributes:
        request: the request itself.
        replies: where its frames go; empty when no caller waits for them.
        entry: the id of the request in its queue.
        epoch: how many times the consumer group has been made anew.
        attempt: the number of this delivery, which starts anew in each epoch.
        deadline: local monotonic seconds.
        queued_ms: milliseconds for which the request waited.
        run: the token of this run.
        queue: the stream that it comes from.
        fence: the state under which it is known to be this worker's.
        begun: whether a run of it has been started here.
        excused_attempts: how many of the attempts, before this one or with it, count against nobody: workers that left cut them off, or
            they waited for their turn.
        server: run id of the server that accepted it, when it must not happen twice.
        noted: whether the server has a note about it, which goes when it ends.
        recovered: whether it was taken over, and not delivered by the group.
        after: the entry before it in its session, if one had not ended when it was published.
        cancelled: the type of the error that its caller has, once that gave it up.
        extended: the deadline of a call that joined it, in monotonic seconds; 0 without one.
        counting: whether the server is asked to count its next attempt; the answer says whether it is still ours.
        excused: whether this attempt does not count, since it waits for its turn in a session; the next one is counted when that comes.
    """

    request: Request
    replies: str
    entry: bytes
    epoch: int
    attempt: int
    deadline: float
    queued_ms: float
    run: str
    queue: RequestStream
    fence: Fence
    begun: bool = False
    excused_attempts: int = 0
    server: bytes = b""
    noted: bool = False
    recovered: bool = False
    after: bytes = b""
    cancelled: str = ""
    extended: float = 0.0
    counting: bool = False
    excused: bool = False

    @property
    def is_held(self) -> bool:
        """True while it is this worker's; what was lost, handed back or finished is not."""
        return self.queue.held.get(self.entry) is self

    @property
    def tries(self) -> int:
        """The number of this attempt among those that count against ``max_deliveries``."""
        return self.attempt - self.excused_attempts

    @property
    def may_have_begun(self) -> bool:
        """True if an earlier attempt may have begun: one that counts, or any that this server process or this group may not know of."""
        if self.tries > 1 or self.server not in {b"", self.queue.server} or self.entry in self.queue.unfinished:
            return True
        return numbers_of(self.entry) <= newest_before(self.queue.fence_known.generation)

    def again(self, attempt: int, run: str) -> Self:
        """Return the same request for a further run on this worker."""
        return msgspec.structs.replace(self, attempt=attempt, run=run, begun=False, counting=False, excused=False)


_MOST_UNFINISHED = 4_096


class RequestStream:
    """One service's requests as this consumer sees them: what it holds, and the fence it knows.

    Args:
        on_lost: called for a delivery that is no longer this worker's.
        on_let_go: called for one that is held no longer, and whether the server has accepted its end, where calls of its session wait or
            something was heard of it.
        set_aside: called for an entry whose request can't be read.

    Attributes:
        fence_known: the fence as it was learned last.
        newest: the numbers of the newest entry that is known to have been delivered to anyone. The server delivers in the order of ids, so
            a group that delivers an entry up to it once more was set back. That holds for reads that begin afterwards: what is learned
            while a read is under way may include the very entries that its answer brings.
        held: the deliveries that are this worker's, by entry.
        unfinished: entries that were let go after a run of theirs had begun here, the newest ones.
        depth: how many requests the stream held, queued and running, when this worker last finished one.
        leaving: True once its service is withdrawn: nothing more is taken, and what is held is still to be answered.
        unlisted: why the registry has no lease of this worker for the service; empty while it has one. Without one, others take over at
            once what is taken here, and each time an attempt is lost.
        sticky: True when calls of one session go to one worker.
        server: the run id of the server.
    """

    def __init__(
        self,
        keys: Keys,
        service: str,
        queue: str,
        consumer: str,
        clock: ServerClock,
        settings: Settings,
        *,
        on_lost: Callable[[Delivery], None],
        on_let_go: Callable[[Delivery, bool], None],
        set_aside: Callable[[RequestStream, BadEntry], None],
    ) -> None:
        self.keys = keys
        self.clock = clock
        self.service = service
        self.queue = queue
        self.consumer = consumer
        self.key = keys.queue(queue)
        self.key_read = self.key.encode()
        self.fence = keys.fence(queue)
        self.dead_letters = keys.dead_letters(queue)
        self.alone_from = settings.alone_from
        self.lease_ms = int(settings.lease * 1000)
        self.cancelled = keys.cancelled(queue)
        self.wake = keys.wake(queue)
        self.fence_known = Fence(b"", b"")
        self.newest: EntryNumbers = ()
        self.held: dict[bytes, Delivery] = {}
        self.unfinished: Latest[bytes, bool] = Latest(_MOST_UNFINISHED)
        self.depth = 0
        self.paused = self.leaving = self.sticky = False
        self.unlisted = ""
        self.server = b""
        self.most_document = settings.max_request + 1024
        self.set_aside = set_aside
        # Tokens of runs: unique without a system call per run, which cost a tenth of a worker's time.
        self.run_prefix = f"{new_run()}."
        self.run_numbers = itertools.count()
        self._paused_since = float("-inf")
        self._on_lost = on_lost
        self._on_let_go = on_let_go

    def pause(self, paused: bool, known: float) -> bool:
        """Take in whether the service was paused at a local monotonic time; True when that is news. What was known earlier says nothing."""
        if known < self._paused_since:
            return False
        news = paused != self.paused
        self.paused, self._paused_since = paused, known
        return news

    def fence_is(self, generation: bytes, counter: bytes) -> None:
        """Take in the fence's state. Deliveries that were held under another generation are lost."""
        if generation != self.fence_known.generation and self.fence_known.generation:
            for delivery in [held for held in self.held.values() if held.fence.generation != generation]:
                self.lose(delivery)
            self.newest = ()
        if self.fence_known != (generation, counter):
            self.fence_known = Fence(generation, counter)

    def lose(self, delivery: Delivery) -> None:
        """Let go of a delivery that is no longer this worker's; one that is not held was let go before, or is tried again."""
        if self.let_go(delivery):
            self._on_lost(delivery)

    def let_go(self, delivery: Delivery, *, ended: bool = False) -> bool:
        """Hold a delivery no longer; return whether it was held.

        Unless the server has accepted its end (``ended``), others have it or take it over, after a lease if nobody renews it.
        """
        if not delivery.is_held:
            return False
        del self.held[delivery.entry]
        if delivery.begun and not ended:
            self.unfinished[delivery.entry] = True
        if delivery.request.ordered or (not ended and (delivery.cancelled or delivery.extended)):
            self._on_let_go(delivery, ended)
        return True

    def remaining_ms(self, delivery: Delivery) -> int:
        """Return the milliseconds until a delivery's deadline."""
        return int(max(0.0, delivery.deadline - self.clock.monotonic()) * 1000)

    def pause_key(self, entry: bytes) -> str:
        """Return the key of the note about an entry: when its time is up, and how often it was cut off."""
        return self.keys.pause(self.queue, entry.decode())

    def renewable(self, now: float) -> list[Delivery]:
        """Return held deliveries whose deadline has not passed; safe to call from the lease thread."""
        # list() of a dict is one step under the interpreter's lock, so the loop can't change it meanwhile.
        return [delivery for delivery in list(self.held.values()) if delivery.deadline > now]

    async def retry(self, link: Link, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a held delivery; None when it is no longer ours, and then it is lost."""
        attempt = delivery.attempt + 1
        # A renewal that was asked before, and is carried out after, does not know the new number, and calls the entry lost.
        delivery.counting = True
        if not await self.count(link, delivery.entry, attempt, delivery.fence):
            # Nothing runs here that could end it, and the server may deliver its entry here once more.
            self.lose(delivery)
        if not delivery.is_held:
            return None
        again = self.held[delivery.entry] = delivery.again(attempt, f"{self.run_prefix}{next(self.run_numbers):x}")
        return again

    async def count(self, link: Link, entry: bytes, attempt: int, fence: Fence) -> bool:
        """Say that an entry is about to run again, for the ``attempt``-th time; False when it is no longer ours."""
        args = (self.consumer, *fence, entry, attempt)
        return bool(await link.execute_script(scripts.COUNT, (self.key, self.fence), args, repeatable=True))
