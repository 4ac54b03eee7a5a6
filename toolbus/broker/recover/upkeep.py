"""What a worker does beside its calls: takes over from the dead, and stops what nobody waits for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from toolbus import telemetry
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Delivery, Note, WorkerListener
from toolbus.broker.reading import integer, skip
from toolbus.broker.registry.registry import Registry
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.take.requests import Entry, Fence, Found, RequestStream
from toolbus.broker.transport.link import Link
from toolbus.results import BrokerError, EnvelopeError, ErrorInfo

_MOST_TAKEN_OVER = 256
_MOST_CHECKED = 256
# A reply stream outlives its agent for longer, so what waited less need not be looked at.
_MAY_BE_ABANDONED_MS = 5_000.0


class Upkeep:
    """Reaping, sweeping, and calls whose callers are gone, for the streams of one worker.

    Args:
        streams: the request streams by service, read afresh at each turn.
        deliveries: makes deliveries of (id, attempt, fields), and sets aside what can't be read.
        look_after: sees, once a lease, to what may have been lost of the registration.

    Attributes:
        taking: whether this worker still takes requests; False while it drains.
        recovered: how many requests of other workers it took over.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        lease: float,
        clock: ServerClock,
        registry: Registry,
        outbox: Outbox,
        streams: Mapping[str, RequestStream],
        *,
        listener: WorkerListener,
        ownership: Ownership,
        deliveries: Callable[[RequestStream, Fence, Sequence[Found]], list[Delivery]],
        look_after: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._keys = keys
        self._lease = lease
        self._clock = clock
        self._registry = registry
        self._outbox = outbox
        self._streams = streams
        self._listener = listener
        self._ownership = ownership
        self._deliveries = deliveries
        self._look_after = look_after
        self.taking = True
        self.recovered = 0
        # Where something may wait that there was no slot for, in the order in which it is looked at; True to look for all, False for
        # what was handed back.
        self._mail: dict[RequestStream, bool] = {}
        # Two at once would count on the same free slots.
        self._one = asyncio.Lock()
        self._checked = 0

    async def run(self) -> None:
        """Reap three times a lease, and sweep the registry once a lease, until cancelled."""
        turn = 0
        while True:
            await asyncio.sleep(self._lease / 3 * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
            turn += 1
            if not self._link.connected:
                continue
            try:
                for stream in list(self._streams.values()):
                    await self._reap(stream)
                if turn % 3 == 0:
                    await self._look_after()
                if self._clock.trusted:
                    if turn % 3 == 0:
                        await self._registry.sweep(self._clock)
                    await self._stop_abandoned()
                    await self._end_abandoned()
                await self._ownership.keep()
            except BrokerError as error:
                telemetry.log.warning("upkeep.failed", error=str(error))

    async def recover(self) -> None:
        """Reap now rather than at the next turn."""
        try:
            for stream in list(self._streams.values()):
                await self._reap(stream)
        except BrokerError as error:
            telemetry.log.warning("upkeep.failed", error=str(error))

    async def take_back(self, stream: RequestStream) -> None:
        """Take what draining workers handed back."""
        try:
            await self._reap(stream, handed_back_only=True)
        except BrokerError as error:
            telemetry.log.warning("upkeep.failed", error=str(error))

    @property
    def mail(self) -> bool:
        """Whether to look again for what this worker had no room for."""
        return self.taking and any(not stream.paused for stream in self._mail)

    async def take_mail(self) -> None:
        """Take what this worker had no room for."""
        try:
            for stream, everything in list(self._mail.items()):
                await self._reap(stream, handed_back_only=not everything)
        except BrokerError as error:
            telemetry.log.warning("upkeep.failed", error=str(error))

    async def _reap(self, stream: RequestStream, *, handed_back_only: bool = False) -> None:
        async with self._one:
            while await self._reap_part(stream, handed_back_only=handed_back_only):
                pass

    async def _reap_part(self, stream: RequestStream, *, handed_back_only: bool) -> bool:
        """Reap a bounded number; whether there may be more to run here now."""
        slots = self._listener.free_slots()
        if stream.paused or not self.taking:
            return False
        everything = self._mail.pop(stream, False) or not handed_back_only
        if slots < 1:
            self._mail[stream] = everything
            return False
        most = min(slots, _MOST_TAKEN_OVER)
        reaped = await stream.reap(
            self._link,
            self._keys.live,
            self._keys.pulse,
            most,
            busy=self._listener.busy(),
            flexible=self._listener.flexible(),
            handed_back_only=not everything,
        )
        if reaped.left:
            self._listener.on_left_over()
        if len(reaped.entries) >= most:
            self._mail[stream] = everything
        if not reaped.entries:
            return False
        if not everything:
            telemetry.log.info("requests.taken_back", service=stream.service, calls=len(reaped.entries))
        else:
            telemetry.log.warning("requests.recovered", service=stream.service, calls=len(reaped.entries))
        # What was tried least is least likely to be what kills us.
        for entry in sorted(reaped.entries, key=lambda entry: entry.attempt):
            await self._run_again(stream, entry, reaped.fence)
        return stream in self._mail and self._listener.free_slots() > 0

    async def _run_again(self, stream: RequestStream, entry: Entry, fence: Fence) -> None:
        """Count an attempt and begin it, before the next one counts: what a poison request takes down with it here has tried nothing.

        It counts before it is even decoded, since that may be what kills its workers.
        """
        if entry.attempt >= stream.alone_from and self._listener.busy():
            # Something came in between: it would wait here, and lose the attempt to whatever happens to this worker meanwhile.
            return
        if entry.counted and not await stream.count(self._link, entry.id, entry.attempt, fence):
            return
        deliveries = self._deliveries(stream, fence, [(entry.id, entry.attempt, entry.fields)])
        self.recovered += len(deliveries)
        telemetry.count("toolbus.reclaimed", len(deliveries), messaging__destination__name=stream.service)
        if stream.sticky:
            deliveries = await self._ownership.settle(deliveries)
        for delivery in deliveries if entry.note else ():
            self._stretch(delivery, entry.note)
        # Lost again meanwhile, perhaps.
        self._listener.on_recovered([delivery for delivery in deliveries if stream.held.get(delivery.entry) is delivery])
        await asyncio.sleep(0)

    def _stretch(self, delivery: Delivery, text: bytes) -> None:
        """Give a delivery the later deadline of a call whose handler has waited for a person."""
        try:
            note = read_note(text, self._clock)
        except EnvelopeError as error:
            skip(delivery.queue.pause_key(delivery.entry), error)
            return
        delivery.extended = True
        delivery.deadline = max(delivery.deadline, note.effective(time.monotonic()))

    async def without_abandoned(self, taken: list[Delivery]) -> list[Delivery]:
        """What was taken, without calls whose callers are gone: nobody would read the answer, so nothing is run."""
        waited = {delivery.replies for delivery in taken if delivery.queued_ms > _MAY_BE_ABANDONED_MS}
        if not waited:
            return taken
        gone = await self._gone(waited)
        for delivery in [each for each in taken if each.replies in gone]:
            telemetry.log.info("call.abandoned", id=delivery.request.id, tool=delivery.request.tool, queued_ms=round(delivery.queued_ms))
            taken.remove(delivery)
            delivery.replies = ""
            self._outbox.finish(delivery, b"")
        return taken

    async def _stop_abandoned(self) -> None:
        """End running calls whose callers are gone: a handler that sends nothing would not notice."""
        held = {delivery.replies for stream in self._streams.values() for delivery in list(stream.held.values())}
        for replies in await self._gone(held):
            self._listener.on_replies_gone(replies, ErrorInfo("cancelled", message="the calling agent is gone"))

    async def _end_abandoned(self) -> None:
        """End the sessions of callers that are gone; looks at a bounded number of callers, at others in the next turn."""
        agents = sorted(self._listener.sessions.agents())
        if len(agents) > _MOST_CHECKED:
            self._checked = (self._checked + _MOST_CHECKED) % len(agents)
            agents = (agents + agents)[self._checked : self._checked + _MOST_CHECKED]
        replies = {self._keys.replies(agent): agent for agent in agents}
        gone = await self._gone(set(replies))
        if gone:
            self._listener.sessions.gone({replies[key] for key in gone})

    async def _gone(self, replies: set[str]) -> set[str]:
        replies.discard("")
        try:
            found = await asyncio.gather(*(self._link.execute("EXISTS", key, repeatable=True) for key in replies))
        except BrokerError:
            return set()
        return {key for key, exists in zip(replies, found, strict=True) if not exists}


def write_note(note: Note, clock: ServerClock) -> str:
    """A note as it stands on the server: its times in milliseconds of the server's clock, 0 for those that are not."""
    return " ".join(str(int((when + clock.offset) * 1000) if when else 0) for when in note)


def read_note(text: bytes, clock: ServerClock) -> Note:
    """Return the note in local times.

    Raises:
        EnvelopeError: it can't be read.
    """
    words = text.split(maxsplit=3)
    if len(words) != len(Note._fields):
        raise EnvelopeError(f"a note is {len(Note._fields)} numbers, not {len(words)}")
    times = [integer(word) / 1000 for word in words]
    return Note(*(when and when - clock.offset for when in times))
