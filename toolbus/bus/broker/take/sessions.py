"""Keep the calls of one session at one worker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import MOST_SNAPSHOT, NO_SNAPSHOT, Snapshot, session_of
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.broker.server.reading import integer, skip, skipping, text
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream
from toolbus.bus.broker.transport.command import REFUSES_ALL, Reply, ReplyError
from toolbus.bus.values.results import BrokerError

_MOST = 256
# Sessions of one script that looks through their lines.
_MOST_LINES = 32
# Above the number of any entry of a millisecond.
_LAST = 2**63
# The owners of sessions begin here among the keys of own.lua.
_FIRST_OWNER = 6
# An owner whose lease has ended counts for nothing, so this only bounds how long its keys stay behind.
OWNER_TTL = 3600.0
_KEEP_EVERY = OWNER_TTL / 3
# Seconds for the server to say who owns a session; after that its calls are dropped, to be taken anew.
_PATIENCE = 5.0
# Seconds before the server is asked again whether an ended run may be answered.
_AGAIN = 1.0
# Seconds before a snapshot is written again for the first time, and at most.
_SAVE_FIRST, _SAVE_MOST = 0.05, 1.0
# Refusals of every write. With no memory left a server still forgets a snapshot.
_REFUSES_FORGETTING = REFUSES_ALL - {"OOM"}

# Since when a lease has been unbroken, and until when it lasts at least.
_NO_LEASE = (math.inf, 0.0)

SessionName = tuple[str, str]
"""User and session."""

StateLeft = Literal["closed", "lost", "kept"]
"""The state of a session that is given up: closed by its caller, lost, of which the next worker is told, or kept, since none began here and
another worker may have left a snapshot.
"""


class Ownership(WorkerStep, eq=False):
    """The sessions of one worker's sticky services.

    An answer of the server holds as long as no other worker could have taken the session: while our lease has never lapsed since.

    Attributes:
        serves: whether there is any service to look after.
        gaining: whether sessions began here among what was taken last: more of them may be on their way.
    """

    # When the server was last asked about a session and said that it is ours (monotonic).
    _owned: dict[RequestStream, dict[SessionName, float]] = msgspec.field(default_factory=dict)
    # Of each service, since another one may have been registered later.
    _leases: dict[RequestStream, tuple[float, float]] = msgspec.field(default_factory=dict)
    serves: bool = False
    gaining: bool = False
    # Others may take the sessions of one that leaves, although its lease goes on.
    _leaves: bool = False
    _given_up: list[tuple[tuple[str, str], str]] = msgspec.field(default_factory=list)

    def serve(self, stream: RequestStream) -> None:
        """Look after the sessions of a service."""
        stream.sticky = True
        self._owned[stream] = {}
        self._leases[stream] = _NO_LEASE
        self.serves = self.gaining = True

    def forget(self, stream: RequestStream) -> None:
        """Look after the sessions of a service no longer."""
        self._owned.pop(stream, None)
        self._leases.pop(stream, None)
        self.serves = bool(self._owned)

    # -- the lease --------------------------------------------------------------------------------

    def beaten(self, asked: float, answered: float, services: Collection[str], *, missing: bool) -> None:
        """Take in a beat for some services: local monotonic times around it, and whether the registry had lost this worker.

        A beat that was sent while a service was being registered does not name it, and leaves its lease as it was.
        """
        for stream, (since, until) in self._leases.items():
            if missing:
                # For other workers, a worker that is not registered has no sessions.
                self._leases[stream] = _NO_LEASE
            elif stream.service in services:
                self._leases[stream] = (asked if answered > until else since, asked + self.settings.lease)

    def doubt(self) -> None:
        """Believe nothing that was said before: the server is another one, was restarted, or lost its keys."""
        now = self.clock.monotonic()
        for stream, (since, until) in self._leases.items():
            self._leases[stream] = (max(since, now), until)

    def leave(self) -> None:
        """Be certain of no session for what is taken from now on; what was taken before stays this worker's."""
        self._leaves = True

    def _certain(self, stream: RequestStream, asked: float) -> bool:
        since, until = self._leases.get(stream, _NO_LEASE)
        return asked >= since and self.clock.monotonic() < until

    # -- deliveries -------------------------------------------------------------------------------

    async def settle(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return the deliveries that are to run here; the others now wait for the workers that have their sessions."""
        self.gaining = False
        for stream, owned in list(self._owned.items()):
            answered: set[str] = set()
            # Asking takes time, in which what was certain may cease to be.
            while unsure := [each for each in deliveries if each.queue is stream and self._is_unsure(owned, each, answered)][:_MOST]:
                if not await self._ask(stream, owned, unsure):
                    return self._without(deliveries, unsure)
                answered |= {delivery.run for delivery in unsure}
                deliveries = [each for each in deliveries if each.is_held]
        return deliveries

    def doubts(self, delivery: Delivery) -> bool:
        """Return whether the session of a run may be another worker's: our lease has lapsed since it was ours, or we gave or lost it.

        A worker that leaves ends what it has begun, whoever has the session by now.
        """
        pair, owned = session_of(delivery.request), self._owned.get(delivery.queue)
        if pair is None or owned is None:
            return False
        asked = owned.get(pair)
        return not self._leaves if asked is None else not self._certain(delivery.queue, asked)

    async def holds(self, delivery: Delivery) -> bool:
        """Return whether the session of a delivery is still this worker's; the server is asked only if that is in doubt."""
        return not self.doubts(delivery) or bool(await self.settle([delivery]))

    async def holds_at_end(self, delivery: Delivery) -> bool:
        """Return whether the session of a run that has ended is still this worker's; ask until the server says so.

        What is dropped would run once more, so only a worker that leaves and a call that nobody waits for any more are given up.
        """
        stream, owned, again = delivery.queue, self._owned.get(delivery.queue), False
        while owned is not None and delivery.is_held and not await self._ask(stream, owned, [delivery], again=again):
            again = True
            if self._leaves or self.clock.monotonic() > max(delivery.deadline, delivery.extended):
                stream.let_go(delivery)
            else:
                await asyncio.sleep(_AGAIN)
        return delivery.is_held

    def _is_unsure(self, owned: dict[SessionName, float], delivery: Delivery, answered: set[str]) -> bool:
        pair = session_of(delivery.request)
        if pair is None:
            return False
        asked = owned.get(pair)
        return asked is None or (delivery.run not in answered and (self._leaves or not self._certain(delivery.queue, asked)))

    def _without(self, deliveries: list[Delivery], unsure: list[Delivery]) -> list[Delivery]:
        """Drop deliveries whose session owner could not be determined. Their leases expire and another worker claims them."""
        for delivery in unsure:
            delivery.queue.let_go(delivery)
        left = {id(delivery) for delivery in unsure}
        return [delivery for delivery in deliveries if id(delivery) not in left]

    async def _ask(
        self, stream: RequestStream, owned: dict[SessionName, float], deliveries: list[Delivery], *, again: bool = False
    ) -> bool:
        """Ask who owns the sessions of some deliveries, and let go of those of other workers; False when the server did not answer.

        That is said in the log, unless they were asked about ``again``.
        """
        pairs = [(each.request.user, each.request.session) for each in deliveries]
        asked = self.clock.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                verdicts = await self._own(stream, pairs, [(each.entry, each.attempt, each.begun) for each in deliveries])
        except (BrokerError, TimeoutError) as error:
            if not again:
                reason = str(error) or "the server did not answer"
                telemetry.log.warning("sessions.unsettled", service=stream.service, calls=len(deliveries), error=reason)
            return False
        for delivery, pair, verdict in zip(deliveries, pairs, verdicts, strict=True):
            if verdict == b"lost":
                stream.lose(delivery)
            elif verdict == b"moved":
                stream.let_go(delivery)
                telemetry.log.debug("session.handed_over", service=stream.service, id=delivery.request.id)
                self._lose(stream, owned, pair)
            else:
                self._gain(stream, owned, pair, asked, verdict)
        return True

    async def _own(self, stream: RequestStream, pairs: Sequence[SessionName], entries: Sequence[tuple[bytes, int, bool]]) -> list[bytes]:
        index: dict[SessionName, int] = {}
        args: list[Any] = []
        for pair, (entry, attempt, begun) in zip(pairs, entries, strict=True):
            args += (index.setdefault(pair, len(index) + _FIRST_OWNER), entry, attempt, int(begun))
        known = stream.fence_known
        common = (self.instance, stream.service, known.generation, int(self.settings.lease * 1000), int(OWNER_TTL * 1000), stream.wake)
        owners = (self._key(stream, pair) for pair in index)
        keys = (stream.key, stream.fence, self.keys.live, self.keys.pulse, self.keys.instances(stream.service), *owners)
        reply = await self.link.execute_script(scripts.OWN, keys, (*common, *args), repeatable=True)
        generation, before, after, verdicts = reply
        if before != after:
            # Deliveries that were ours when the script ran, and that it did not hand over, are ours still. Under the new fence the lease
            # thread would take back one that was handed over.
            old, new = Fence(generation, before), Fence(generation, after)
            moved = {entry for (entry, _, _), verdict in zip(entries, verdicts, strict=True) if verdict == b"moved"}
            for delivery in stream.held.values():
                if delivery.fence == old and delivery.entry not in moved:
                    delivery.fence = new
        stream.fence_is(generation, after)
        return list(verdicts)

    def _gain(self, stream: RequestStream, owned: dict[SessionName, float], pair: SessionName, asked: float, verdict: bytes) -> None:
        new = verdict != b"mine"
        if verdict[:5] == b"heir ":
            # No call that was published until now can know of the state that begins here.
            self.listener.sessions.inherited(stream.service, *pair, (integer(verdict[5:]), _LAST))
        if new and pair in owned:
            # Another worker may have had it meanwhile, so the state that is here is out of date.
            self.listener.sessions.moved(stream.service, *pair)
        self.gaining = self.gaining or new
        owned[pair] = asked

    def _lose(self, stream: RequestStream, owned: dict[SessionName, float], pair: SessionName) -> None:
        if owned.pop(pair, None) is not None:
            self.listener.sessions.moved(stream.service, *pair)

    # -- upkeep -----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renew the owners of open sessions whose keys have used up a third of their time, a bounded number at once.

        A session that is not open is forgotten: its calls were all refused before they ran, so that no end of it gives it up.

        Raises:
            BrokerError: the server can't be asked.
        """
        asked = self.clock.monotonic()
        for stream, owned in list(self._owned.items()):
            due: list[SessionName] = []
            for pair in [pair for pair, then in owned.items() if asked - then > _KEEP_EVERY]:
                if self.listener.sessions.is_open(stream.service, *pair):
                    due.append(pair)
                else:
                    del owned[pair]
            if not (due := due[:_MOST]):
                continue
            for pair, verdict in zip(due, await self._own(stream, due, [(b"", 0, False)] * len(due)), strict=True):
                if verdict == b"moved":
                    self._lose(stream, owned, pair)
                elif pair in owned:
                    self._gain(stream, owned, pair, asked, verdict)

    def release(self, service: str, pair: SessionName, state: StateLeft) -> None:
        """Give up a session that has ended here. Returns at once; all of one tick go together."""
        for stream, owned in list(self._owned.items()):
            if stream.service == service and owned.pop(pair, None) is not None:
                keys = self._key(stream, pair), self.keys.snapshot(stream.queue, session_digest(*pair))
                self._given_up.append((keys, state))
                if len(self._given_up) == 1:
                    asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        given_up, self._given_up = self._given_up, []
        for start in range(0, len(given_up), _MOST):
            part = given_up[start : start + _MOST]
            keys = tuple(key for pair, _ in part for key in pair)
            # Keys that stay, since this failed, have a TTL.
            self.link.run(scripts.DISOWN, keys, (self.instance, *(state for _, state in part)), repeatable=True)

    async def before(self, deliveries: Sequence[Delivery]) -> list[list[bytes]]:
        """Return for each the entries that came before it in its session and have not ended.

        Raises:
            BrokerError: the server can't be asked.
        """
        found: dict[bytes, list[bytes]] = {}
        for stream in dict.fromkeys(delivery.queue for delivery in deliveries):
            asked = [delivery for delivery in deliveries if delivery.queue is stream]
            for start in range(0, len(asked), _MOST_LINES):
                part = asked[start : start + _MOST_LINES]
                args = [arg for each in part for arg in (session_digest(each.request.user, each.request.session), each.entry, each.after)]
                keys = (stream.key, self.keys.order(stream.queue))
                answers = await self.link.execute_script(scripts.LINE, keys, tuple(args), repeatable=True)
                found |= {each.entry: answer.split() for each, answer in zip(part, answers, strict=True)}
        return [found[delivery.entry] for delivery in deliveries]

    def _key(self, stream: RequestStream, pair: SessionName) -> str:
        return self.keys.session(stream.queue, session_digest(*pair))


SNAPSHOT_TTL = 86_400
# As long as a call's id may be, and longer than any token.
_MOST_WORD = 64


class Snapshots(WorkerStep, eq=False):
    """Writes and reads the snapshots of sessions."""

    ownership: Ownership

    async def save(self, delivery: Delivery, snapshot: Snapshot) -> bool:
        """Keep a snapshot; return False when another worker has the call or its session.

        The answer is waited for. A server that refuses a snapshot for a moment may accept the end of its call that was sent right behind,
        and then nobody may change anything for that call any more.
        """
        if not await self.ownership.holds(delivery):
            return False
        args = (*self._caller(delivery), snapshot.state, snapshot.call, snapshot.document, SNAPSHOT_TTL * 1000)
        try:
            kept = await self._write(delivery, args)
        except BrokerError as error:
            self._tell(delivery, str(error))
            if isinstance(error, ReplyError):
                # What is kept is out of date, and a full server still lets go of it.
                await self.forget(delivery)
            return True
        if not kept:
            self._tell(delivery, "the call has ended, or another worker has the session")
        return bool(kept)

    async def _write(self, delivery: Delivery, args: tuple[Any, ...]) -> Reply:
        """Write a snapshot, or forget it; again and again while the server refuses every write and the call is held. Return the answer."""
        pause = _SAVE_FIRST
        while True:
            try:
                return await self.link.execute_script(scripts.SAVE, self._keys_of(delivery), args, repeatable=True)
            except ReplyError as error:
                # Otherwise the end of the call would be taken first, with the first write that the server takes again.
                if error.code not in _REFUSES_FORGETTING or not delivery.is_held:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _SAVE_MOST)

    async def forget(self, delivery: Delivery) -> None:
        """Forget the snapshot of a delivery's session; the answer is waited for, as it is for a new one."""
        try:
            await self._write(delivery, (*self._caller(delivery), "", "", "", SNAPSHOT_TTL * 1000))
        except BrokerError as error:
            self._tell(delivery, str(error))

    async def load(self, delivery: Delivery) -> Snapshot | None:
        """Return the snapshot of a session, ``NO_SNAPSHOT`` when it can't be used, or None when there never was one.

        Raises:
            BrokerError: the server can't be asked.
        """
        key = self._snapshot(delivery)
        found = await self.link.execute_script(scripts.LOAD, (key,), (MOST_SNAPSHOT, _MOST_WORD), repeatable=True)
        if len(found) == 3:
            state, call, document = found
            with skipping(key):
                return Snapshot(text(state, most=_MOST_WORD), text(call, most=_MOST_WORD), document)
        elif found:
            skip(key, found[0].decode("utf-8", "replace"))
        return NO_SNAPSHOT if found else None

    async def is_elsewhere(self, delivery: Delivery) -> bool:
        """Return whether a worker that lives runs a call in the order of a delivery's session, although the session is this worker's now.

        Raises:
            BrokerError: the server can't be asked.
        """
        stream = delivery.queue
        keys = (stream.key, self.keys.order(stream.queue), stream.fence, self.keys.live)
        args = (self._digest(delivery), "", "", stream.consumer, stream.service)
        return bool(await self.link.execute_script(scripts.LINE, keys, args, repeatable=True) != [b""])

    def _keys_of(self, delivery: Delivery) -> tuple[str, ...]:
        stream = delivery.queue
        return stream.key, stream.fence, self.keys.session(stream.queue, self._digest(delivery)), self._snapshot(delivery)

    def _caller(self, delivery: Delivery) -> tuple[Any, ...]:
        needs = not delivery.request.ordered or self.ownership.doubts(delivery)
        return delivery.queue.consumer, *delivery.fence, delivery.entry, delivery.attempt, int(needs)

    def _snapshot(self, delivery: Delivery) -> str:
        return self.keys.snapshot(delivery.queue.queue, self._digest(delivery))

    def _digest(self, delivery: Delivery) -> str:
        return session_digest(delivery.request.user, delivery.request.session)

    def _tell(self, delivery: Delivery, reason: str) -> None:
        request = delivery.request
        telemetry.log.warning("session.unsaved", queue=delivery.queue.queue, user=request.user, session=request.session, error=reason)
