"""Take over from dead or leaving workers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import NOTE_TTL, DeadlineNotes, excused_attempts
from toolbus.bus.broker.registry.publications import WorkerRegistration
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.replies.finish import Outbox
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream, common_fence
from toolbus.bus.broker.take.sessions import Ownership
from toolbus.bus.broker.transport.command import Reply
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import tell_time, upkeep_step
from toolbus.bus.support.waiting import each_of
from toolbus.bus.values.envelope import numbers_of
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ErrorInfo

_MOST_CHECKED = 256
MAY_BE_ABANDONED_MS = 5_000.0
"""A reply stream outlives its agent for longer, so a request that waited less need not be checked."""


class AbandonedCalls(WorkerStep, eq=False):
    """Finds and ends calls of one worker whose callers are gone, by their missing reply streams."""

    outbox: Outbox
    _checked: int = 0

    async def without(self, taken: list[Delivery]) -> list[Delivery]:
        """Return what was taken without abandoned calls; those end here and never run."""
        waited = {delivery.replies for delivery in taken if delivery.queued_ms > MAY_BE_ABANDONED_MS}
        gone = await self._gone(waited)
        for delivery in [each for each in taken if each.replies in gone]:
            telemetry.log.info("call.abandoned", id=delivery.request.id, tool=delivery.request.tool, queued_ms=round(delivery.queued_ms))
            taken.remove(delivery)
            delivery.replies = ""
            self.outbox.finish(delivery, b"")
        return taken

    async def stop_calls(self) -> None:
        """End abandoned calls that run: a handler that sends nothing would not notice."""
        for replies in sorted(await self._gone({delivery.replies for delivery in self._held()})):
            self._stop(replies, ErrorInfo("cancelled", message="the calling agent is gone"))

    async def stop_calls_of(self, replies: str, error: ErrorInfo) -> None:
        """End the calls whose reply stream was missing, unless the server's clock was set forward: then their agent takes it over."""
        try:
            await tell_time(self.link, self.clock)
        except BrokerError:
            return
        if not self.clock.ran_ahead:
            self._stop(replies, error)

    async def end_sessions(self) -> None:
        """End the sessions of callers that are gone; each turn checks a bounded number of callers."""
        agents = sorted(self.listener.sessions.agents())
        if len(agents) > _MOST_CHECKED:
            self._checked = (self._checked + _MOST_CHECKED) % len(agents)
            agents = (agents + agents)[self._checked : self._checked + _MOST_CHECKED]
        replies = {self.keys.replies(agent): agent for agent in agents}
        gone = await self._gone(set(replies))
        if gone:
            self.listener.sessions.gone({replies[key] for key in gone})

    def _stop(self, replies: str, error: ErrorInfo) -> None:
        self.listener.on_replies_gone(replies, error)
        for delivery in self._held():
            if delivery.replies == replies:
                # Its answer would make the stream anew.
                delivery.replies = ""
                if delivery.counting or not delivery.begun:
                    # It may be on its way to a slot, where nothing would stop it any more.
                    delivery.cancelled = "cancelled"

    def _held(self) -> list[Delivery]:
        return [delivery for stream in self.streams.values() for delivery in stream.held.values()]

    async def _gone(self, replies: set[str]) -> set[str]:
        """Return the reply streams that do not exist; none when the server can't be asked, or its clock was just set forward."""
        asked = sorted(replies - {""})
        try:
            found = await asyncio.gather(*(self.link.execute("EXISTS", key, repeatable=True) for key in asked))
            gone = {key for key, exists in zip(asked, found, strict=True) if not exists}
            if gone:
                await tell_time(self.link, self.clock)
        except BrokerError:
            return set()
        # Their agents make them anew within a lease.
        return gone if self.clock.trusted else set()


_MOST_AT_ONCE = 256
# Seconds in which agents have heard of a change of the registry and no longer publish by what they knew before.
_HEARD_WITHIN = 0.3
# Seconds between two looks at what is left of the calls of an old revision.
_LOOK_AGAIN = 0.1


async def hand_back(link: Link, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries to other workers; those that are no longer held are left out.

    One that has begun to run is run as the next attempt there.

    Raises:
        BrokerError: the server could not be told; the leases of the deliveries end, and other workers take them over.
    """
    # Streams in the order in which they appear.
    streams = dict.fromkeys(delivery.queue for delivery in deliveries)
    await each_of(_hand_back(link, stream, [each for each in deliveries if each.queue is stream]) for stream in streams)


async def _hand_back(link: Link, stream: RequestStream, own: Sequence[Delivery]) -> None:
    for start in range(0, len(own), _MOST_AT_ONCE):
        known = stream.fence_known.generation
        part = [delivery for delivery in own[start : start + _MOST_AT_ONCE] if stream.let_go(delivery)]
        # One that came under a generation that has ended is not ours to give: no longer renewed, it is taken over after a lease.
        part = [delivery for delivery in part if delivery.fence.generation == known]
        if part:
            notes = [stream.pause_key(delivery.entry) for delivery in part if delivery.begun]
            args: list[bytes | str | int] = [stream.consumer, *common_fence(part), stream.wake, stream.service]
            for delivery in part:
                args += (delivery.entry, delivery.attempt, stream.remaining_ms(delivery) + NOTE_TTL if delivery.begun else "")
            await link.execute_script(scripts.HAND_BACK, (stream.key, stream.fence, *notes), tuple(args), repeatable=True)


async def hand_over(link: Link, keys: Keys, delivery: Delivery) -> bool:
    """Give a delivery that has not begun to a live worker that serves the revision it was made for; return False when there is none.

    Raises:
        BrokerError: the server could not be asked.
    """
    stream = delivery.queue
    about = (delivery.fence.generation, stream.wake, delivery.entry, delivery.attempt, delivery.request.digest)
    places = (stream.key, stream.fence, keys.live, keys.instances(stream.service))
    if not await link.execute_script(scripts.HAND_OVER, places, (stream.consumer, stream.service, *about), repeatable=True):
        return False
    stream.let_go(delivery)
    return True


async def pass_on(link: Link, streams: Sequence[RequestStream]) -> None:
    """Let any worker take what waits for this one in some streams.

    Raises:
        BrokerError: the server could not be asked.
    """
    await each_of(_pass_on(link, stream) for stream in streams)


async def _pass_on(link: Link, stream: RequestStream) -> None:
    passed = _MOST_AT_ONCE
    while passed == _MOST_AT_ONCE:
        args = (stream.consumer, "", "", stream.wake, stream.service, "", _MOST_AT_ONCE, "")
        passed = await link.execute_script(scripts.HAND_BACK, (stream.key, stream.fence), args, repeatable=True)


async def outlive(link: Link, keys: Keys, stream: RequestStream, registration: WorkerRegistration) -> None:
    """Wait until the calls for this worker's revision were taken, if nobody else serves it and others serve another one.

    Agents turn to the other one meanwhile. Without that, the last worker of a revision leaves calls behind that nobody can take.

    Raises:
        BrokerError: the server could not be asked.
    """
    places = (stream.key, stream.fence, keys.live, keys.instances(stream.service))
    about, until, passed = (stream.consumer, stream.service, registration.digest(stream.service)), b"", 0
    while True:
        last, newest, now_passed = await link.execute_script(scripts.OUTLIVE, places, (*about, until), repeatable=True)
        # Looked at twice, since another worker may be about to hand over what it has just taken.
        if not last or (passed and now_passed):
            return
        passed = now_passed
        if not until:
            await registration.step_back(stream.service)
            await asyncio.sleep(_HEARD_WITHIN)
            _, until, _ = await link.execute_script(scripts.OUTLIVE, places, (*about, newest), repeatable=True)
        await asyncio.sleep(_LOOK_AGAIN)


_PAUSE = 1.0


async def _nothing() -> None:
    """Renew nothing."""


class KeyRepair(msgspec.Struct, eq=False):
    """Deletes keys of a wrong type, which their owner makes anew, and sets groups back that stand beyond their stream's newest entry.

    Args:
        types: the keys that this process uses, and the type of each as ``TYPE`` names it, in parts: a user may write all of one or none.
        on_mended: called after keys were deleted.
        renew: called together with each look, for what must be there again at once.
    """

    link: Link
    types: Callable[[], Sequence[Mapping[str, str]]]
    on_mended: Callable[[], None]
    renew: Callable[[], Awaitable[None]] = _nothing
    _wanted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def request(self) -> None:
        """Look at the keys soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Look whenever ``request`` was called, once a second at most, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for part in self.types():
                with upkeep_step():
                    if await self.mend(part):
                        self.on_mended()
            await asyncio.sleep(_PAUSE)

    async def mend(self, types: Mapping[str, str]) -> bool:
        """Look at these keys now; return whether any was deleted.

        Raises:
            BrokerError: the server could not be asked.
        """
        mending = self.link.execute_script(scripts.MEND, tuple(types), tuple(types.values()), repeatable=True)
        # Both in one write: workers that find no reply stream take its agent for dead.
        wrong, _ = await asyncio.gather(mending, self.renew())
        keys, deleted = list(types), False
        for index, found in zip(wrong[::2], wrong[1::2], strict=True):
            key = keys[index - 1]
            if found == b"group":
                telemetry.log.error("key.group_moved", key=key)
            else:
                deleted = True
                telemetry.log.error("key.wrong_type", key=key, found=found.decode(), wanted=types[key])
        return deleted


class ReapedEntry(NamedTuple):
    """An entry that was moved to this consumer.

    Attributes:
        id: the entry's id.
        delivered: how often it was delivered until now.
        counted: 1 when its run here is a further attempt, 0 when not.
        fields: its fields, flat; None when the entry is gone.
        owner: the consumer that had it until now.
        note: what is known about the call beyond its fields, see ``read_note`` and ``excused_attempts``; empty for most.
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

    @property
    def tries(self) -> int:
        """The number of that attempt among those that count against the call."""
        return self.attempt - excused_attempts(self.note)


class Reaped(NamedTuple):
    """The result of one reap.

    Attributes:
        entries: what was taken over.
        fence: the state under which they are this worker's.
        left: whether this worker is to make room for a suspect that must run alone.
    """

    entries: list[ReapedEntry]
    fence: Fence
    left: bool


async def reap(link: Link, keys: Keys, stream: RequestStream, slots: int, *, busy: bool, flexible: bool, handed_back_only: bool) -> Reaped:
    """Take over what was handed back, entries of dead workers, and deliveries whose reply was lost; at most ``slots`` entries.

    ``busy`` when this worker holds anything, ``flexible`` when it could make room for a suspect, which must run alone. With
    ``handed_back_only`` the entries of dead workers stay.

    Raises:
        BrokerError: the server could not be asked.
    """
    who = (stream.consumer, stream.service, slots, stream.lease_ms)
    how = (int(handed_back_only), int(busy), stream.alone_from, int(flexible), stream.pause_key(b""))
    reply: Reply = await link.execute_script(scripts.REAP, (stream.key, stream.fence, keys.live, keys.pulse), (*who, *how))
    generation, counter, taken, left, delivered = reply
    stream.fence_is(generation, counter)
    stream.newest = max(stream.newest, numbers_of(delivered))
    return Reaped([entry for entry in itertools.starmap(ReapedEntry, taken) if _is_news(stream, entry)], stream.fence_known, bool(left))


def _is_news(stream: RequestStream, entry: ReapedEntry) -> bool:
    """Return whether an entry was not held here all the time; a delivery of it that was held is lost."""
    held = stream.held.get(entry.id)
    if held is None:
        return True
    if entry.owner == stream.consumer.encode():
        # It only looked as if it was not renewed.
        return False
    stream.lose(held)
    return True


_MOST_TAKEN_OVER = 256
# The registry is swept in every third turn, once a lease.
_TURNS_A_LEASE = 3
_MOST_TOOLS = 1_000


class Upkeep(WorkerStep, eq=False):
    """Reaps, sweeps and stops abandoned calls for the streams of one worker.

    Args:
        deliveries: makes deliveries of entries, see ``intake.deliveries``.
        register_lost: restores, once a lease, what was lost of the registration.
        on_lost_elsewhere: called with a delivery that was taken over, and the worker whose attempt was lost.

    Attributes:
        taking: whether this worker still takes requests; False while it drains.
        recovered: how many requests of other workers it took over.
        retaken: how many of them another worker had begun to run, by service and tool.
        postponed: streams in which something may wait that there was no slot for, in the order in which they are reaped; the value says
            whether to reap everything or only what was handed back.
    """

    registry: Registry
    ownership: Ownership
    notes: DeadlineNotes
    abandoned: AbandonedCalls
    deliveries: Callable[[RequestStream, Iterable[Sequence[Any]], Fence, int], list[Delivery]]
    register_lost: Callable[[], Awaitable[None]]
    on_lost_elsewhere: Callable[[Delivery, bytes], None]
    taking: bool = True
    recovered: int = 0
    retaken: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    postponed: dict[RequestStream, bool] = msgspec.field(default_factory=dict)
    # Two reaps at once would count on the same free slots.
    _one: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    # Whether the registry is to be swept as soon as the clock is trusted.
    _sweep_due: bool = False
    # The id of each stream behind which to look next for what its group has passed over.
    _behind: dict[RequestStream, bytes] = msgspec.field(default_factory=dict)
    # What must run alone and found another request here, by stream; others find it only when it was not renewed for two leases.
    _crossed: dict[RequestStream, tuple[ReapedEntry, Fence]] = msgspec.field(default_factory=dict)

    @property
    def every(self) -> float:
        """The seconds between two turns, at most."""
        return self.settings.lease / _TURNS_A_LEASE

    async def run(self) -> None:
        """Take three turns a lease, until cancelled."""
        turn = 0
        while True:
            await asyncio.sleep(self.every * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
            turn += 1
            if self.link.connected:
                await self.turn(once_a_lease=turn % _TURNS_A_LEASE == 0)

    async def turn(self, *, once_a_lease: bool) -> None:
        """Reap every stream, then stop abandoned calls.

        With ``once_a_lease`` also look for what was passed over, restore the registration and sweep the registry.
        """
        with upkeep_step():
            for stream in list(self.streams.values()):
                await self._apart(self._reap(stream))
                if once_a_lease:
                    await self._apart(self._rescue(stream))
            if once_a_lease:
                await self._apart(self.register_lost())
            self._sweep_due = self._sweep_due or once_a_lease
            if self.clock.trusted:
                if self._sweep_due:
                    self._sweep_due = False
                    await self._apart(self.registry.sweep(self.clock))
                await self._apart(self.abandoned.stop_calls())
                await self._apart(self.abandoned.end_sessions())
            await self.ownership.keep()

    async def recover(self) -> None:
        """Reap now rather than at the next turn."""
        with upkeep_step():
            for stream in list(self.streams.values()):
                await self._apart(self._reap(stream))

    async def look_into(self, stream: RequestStream) -> None:
        """Reap one stream now rather than at the next turn."""
        with upkeep_step():
            await self._reap(stream)

    async def stop_recovering(self) -> None:
        """Take over nothing more; return when what a reap under way has moved here is with the listener."""
        self.taking = False
        async with self._one:
            pass

    async def forget(self, stream: RequestStream) -> None:
        """Look after a stream no longer; waits until a reap that is under way has ended."""
        async with self._one:
            self.postponed.pop(stream, None)
            self._behind.pop(stream, None)
            self._crossed.pop(stream, None)

    async def take_back(self, stream: RequestStream) -> None:
        """Take what draining workers handed back."""
        with upkeep_step():
            await self._reap(stream, handed_back_only=True)

    async def _apart(self, step: Awaitable[None]) -> None:
        """Take one step; what the server refuses in it keeps no other step from being taken.

        Raises:
            BrokerUnavailable: the connection is lost, so that the others would fail as well.
        """
        try:
            await step
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            telemetry.log.warning("upkeep.failed", error=str(error))

    @property
    def has_postponed(self) -> bool:
        """True when requests wait that this worker had no slot for."""
        return self.taking and any(not (stream.paused or stream.leaving or stream.unlisted) for stream in self.postponed)

    async def reap_postponed(self) -> None:
        """Take what this worker had no slot for."""
        with upkeep_step():
            for stream, everything in list(self.postponed.items()):
                await self._apart(self._reap(stream, handed_back_only=not everything))

    async def _reap(self, stream: RequestStream, *, handed_back_only: bool = False) -> None:
        async with self._one:
            while await self._reap_part(stream, handed_back_only=handed_back_only):
                pass

    async def _reap_part(self, stream: RequestStream, *, handed_back_only: bool) -> bool:
        """Reap a bounded number of entries; return whether there may be more to run here now."""
        slots = self.listener.free_slots()
        if stream.paused or stream.leaving or stream.unlisted or not self.taking:
            return False
        everything = self.postponed.pop(stream, False) or not handed_back_only
        if slots < 1:
            self.postponed[stream] = everything
            return False
        most = min(slots, _MOST_TAKEN_OVER)
        busy, flexible = self.listener.busy(), self.listener.flexible()
        if not busy and stream in self._crossed:
            await self._run_again(stream, *self._crossed.pop(stream))
            self.postponed[stream] = everything
            return self.listener.free_slots() > 0
        reaped = await reap(self.link, self.keys, stream, most, busy=busy, flexible=flexible, handed_back_only=not everything)
        if reaped.left:
            self.listener.on_room_wanted()
        if len(reaped.entries) >= most:
            self.postponed[stream] = everything
        if not reaped.entries:
            return False
        if not everything:
            # Where calls are handed to the workers of their sessions, this is no news.
            if not stream.sticky:
                telemetry.log.info("requests.taken_back", service=stream.service, calls=len(reaped.entries))
        else:
            telemetry.log.warning("requests.recovered", service=stream.service, calls=len(reaped.entries))
        # The entry that was tried least is least likely to kill this worker.
        for entry in sorted(reaped.entries, key=lambda entry: entry.tries):
            await self._run_again(stream, entry, reaped.fence)
        # What must run alone was taken alone. Where it ended at once, as a dead letter does, the next one does not wait for a turn.
        alone = reaped.entries[0].tries >= stream.alone_from
        return (alone or stream in self.postponed) and self.listener.free_slots() > 0

    async def _rescue(self, stream: RequestStream) -> None:
        """Let requests run that wait although their group has come further, stretch by stretch while such are found."""
        rescued, found = 0, 1
        while found:
            args = (self._behind.pop(stream, b""), stream.lease_ms, stream.wake, stream.service)
            found, behind = await self.link.execute_script(scripts.RESCUE, (stream.key,), args, repeatable=True)
            rescued += found
            if behind:
                self._behind[stream] = behind
        if rescued:
            telemetry.log.error("requests.passed_over", service=stream.service, calls=rescued)

    async def _run_again(self, stream: RequestStream, entry: ReapedEntry, fence: Fence) -> None:
        """Count and start one entry at a time: if it kills this worker, later entries have not used an attempt."""
        if entry.tries >= stream.alone_from and self.listener.busy():
            # Another request came in between: the suspect would wait here, and lose the attempt to whatever happens to this worker.
            self._crossed[stream] = entry, Fence(fence.generation, b"")
            if self.listener.flexible():
                self.listener.on_room_wanted()
            return
        own = entry.owner == stream.consumer.encode()
        # The server can't know that a run had begun here, so it has not counted it.
        if stream.unfinished.pop(entry.id, False) and own:
            entry = entry._replace(counted=1)
        # Decoding may already be what kills its workers, so the attempt counts before. One of ours may have been answered meanwhile, of
        # which the fence says nothing: without its counter the entry itself is looked at.
        under = Fence(fence.generation, b"") if own else fence
        if (entry.counted or not under.counter) and not await stream.count(self.link, entry.id, entry.attempt, under):
            return
        taken = self.deliveries(stream, [(entry.id, entry.fields)], fence, entry.attempt)
        for delivery in taken:
            delivery.recovered = True
            if entry.counted and not own and not entry.owner.startswith(b"~"):
                self._note_lost(delivery, entry.owner)
        self.recovered += len(taken)
        telemetry.count("toolbus.reclaimed", len(taken), messaging__destination__name=stream.service)
        # A call that kills its workers would go on killing them after its caller has died.
        taken = await self.abandoned.without(taken)
        if stream.sticky:
            taken = await self.ownership.settle(taken)
        for delivery in taken if entry.note else ():
            self.notes.apply(delivery, entry.note)
        # They may have been lost again meanwhile.
        self.listener.on_recovered([delivery for delivery in taken if delivery.is_held])
        await asyncio.sleep(0)

    def _note_lost(self, delivery: Delivery, owner: bytes) -> None:
        tool = (delivery.request.service, delivery.request.tool)
        # Names of tools are what callers say, without end.
        self.retaken[tool if tool in self.retaken or len(self.retaken) < _MOST_TOOLS else (tool[0], "")] += 1
        self.on_lost_elsewhere(delivery, owner)
