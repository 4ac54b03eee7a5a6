"""The owners of sessions, for services that ask for calls of one session to go to one worker.

The server keeps an owner for each session; this module keeps what this worker knows of its own, so that only the first call
of a session, or one that came to the wrong worker, is a question to the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols import SessionListener, session_of
from toolbus.broker.reading import integer
from toolbus.broker.take.requests import Fence, RequestStream, StreamDelivery
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError

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

SessionName = tuple[str, str]
"""User and session."""


class Ownership:
    """The sessions of one worker's sticky services.

    An answer of the server holds as long as no other worker could have taken the session: while our lease has never lapsed since.

    Args:
        lease: seconds.
        sessions: hears of sessions that are another worker's now.
        monotonic: the local clock, in seconds.

    Attributes:
        serves: whether there is any service to look after.
        gaining: whether sessions began here among what was taken last: more of them may be on their way.
    """

    def __init__(
        self,
        link: Transport,
        keys: Keys,
        lease: float,
        instance: str,
        sessions: SessionListener,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._link = link
        self._keys = keys
        self._lease = lease
        self._instance = instance
        self._sessions = sessions
        # When the server was last asked about a session and said that it is ours (monotonic).
        self._owned: dict[RequestStream, dict[SessionName, float]] = {}
        # Since when our lease has been unbroken, and until when it lasts at least.
        self._since = self._until = 0.0
        self.serves = self.gaining = False
        # Others may take the sessions of one that leaves, although its lease goes on.
        self._leaves = False
        self._given_up: list[tuple[tuple[str, str], int]] = []

    def serve(self, stream: RequestStream) -> None:
        """Look after the sessions of a service."""
        stream.sticky = True
        self._owned[stream] = {}
        self.serves = self.gaining = True

    def forget(self, stream: RequestStream) -> None:
        """Look after the sessions of a service no longer."""
        self._owned.pop(stream, None)
        self.serves = bool(self._owned)

    # -- the lease --------------------------------------------------------------------------------

    def beaten(self, asked: float, answered: float, *, missing: bool) -> None:
        """Take in a beat: local monotonic times around it, and whether the registry had lost this worker."""
        if missing:
            # For other workers, a worker that is not registered has no sessions.
            self._since, self._until = float("inf"), 0.0
            return
        if answered > self._until:
            self._since = asked
        self._until = asked + self._lease

    def doubt(self) -> None:
        """Believe nothing that was said before: the server is another one, was restarted, or lost its keys."""
        self._since = max(self._since, self._monotonic())

    def leave(self) -> None:
        """Be certain of no session for what is taken from now on; what was taken before stays this worker's."""
        self._leaves = True

    def _certain(self, asked: float) -> bool:
        return asked >= self._since and self._monotonic() < self._until

    # -- deliveries -------------------------------------------------------------------------------

    async def settle(self, deliveries: list[StreamDelivery]) -> list[StreamDelivery]:
        """Return the deliveries that are to run here; the others now wait for the workers that have their sessions."""
        self.gaining = False
        for stream, owned in list(self._owned.items()):
            answered: set[str] = set()
            # Asking takes time, in which what was certain may cease to be.
            while unsure := [each for each in deliveries if each.queue is stream and self._is_unsure(owned, each, answered)][:_MOST]:
                if not await self._ask(stream, owned, unsure):
                    return self._without(deliveries, unsure)
                answered |= {delivery.run for delivery in unsure}
                deliveries = [each for each in deliveries if each.queue is not stream or stream.held.get(each.entry) is each]
        return deliveries

    def doubts(self, delivery: StreamDelivery) -> bool:
        """Return whether the session of a run that has ended may be another worker's: our lease has lapsed since it was ours."""
        pair = session_of(delivery.request)
        asked = None if pair is None else self._owned.get(delivery.queue, {}).get(pair)
        return asked is not None and not self._certain(asked)

    async def holds(self, delivery: StreamDelivery) -> bool:
        """Return whether the session of a delivery is still this worker's; the server is asked only if that is in doubt."""
        return not self.doubts(delivery) or bool(await self.settle([delivery]))

    def _is_unsure(self, owned: dict[SessionName, float], delivery: StreamDelivery, answered: set[str]) -> bool:
        pair = session_of(delivery.request)
        if pair is None:
            return False
        asked = owned.get(pair)
        return asked is None or (delivery.run not in answered and (self._leaves or not self._certain(asked)))

    def _without(self, deliveries: list[StreamDelivery], unsure: list[StreamDelivery]) -> list[StreamDelivery]:
        """Drop deliveries whose session owner could not be determined. Their leases expire and another worker claims them."""
        for delivery in unsure:
            if delivery.queue.held.get(delivery.entry) is delivery:
                del delivery.queue.held[delivery.entry]
        left = {id(delivery) for delivery in unsure}
        return [delivery for delivery in deliveries if id(delivery) not in left]

    async def _ask(self, stream: RequestStream, owned: dict[SessionName, float], deliveries: list[StreamDelivery]) -> bool:
        """Ask who owns the sessions of some deliveries, and let go of those of other workers; False when the server did not answer."""
        pairs = [(each.request.user, each.request.session) for each in deliveries]
        asked = self._monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                verdicts = await self._own(stream, pairs, [(each.entry, each.attempt, each.begun) for each in deliveries])
        except (BrokerError, TimeoutError) as error:
            reason = str(error) or "the server did not answer"
            telemetry.log.warning("sessions.unsettled", service=stream.service, calls=len(deliveries), error=reason)
            return False
        for delivery, pair, verdict in zip(deliveries, pairs, verdicts, strict=True):
            if verdict == b"lost":
                stream.lose(delivery)
            elif verdict == b"moved":
                if stream.held.get(delivery.entry) is delivery:
                    del stream.held[delivery.entry]
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
        common = (self._instance, stream.service, known.generation, int(self._lease * 1000), int(OWNER_TTL * 1000), stream.wake)
        owners = (self._key(stream, pair) for pair in index)
        keys = (stream.key, stream.fence, self._keys.live, self._keys.pulse, self._keys.instances(stream.service), *owners)
        reply = await self._link.execute_script(scripts.OWN, keys, (*common, *args), repeatable=True)
        generation, before, after, verdicts = reply
        if before != after:
            # Deliveries that were ours when the script ran, and that it did not hand over, are ours still.
            old, new = Fence(generation, before), Fence(generation, after)
            for delivery in stream.held.values():
                if delivery.fence == old:
                    delivery.fence = new
        stream.fence_is(generation, after)
        return list(verdicts)

    def _gain(self, stream: RequestStream, owned: dict[SessionName, float], pair: SessionName, asked: float, verdict: bytes) -> None:
        new = verdict != b"mine"
        if verdict[:5] == b"heir ":
            # No call that was published until now can know of the state that begins here.
            self._sessions.inherited(stream.service, *pair, (integer(verdict[5:]), _LAST))
        if new and pair in owned:
            # Another worker may have had it meanwhile, so the state that is here is out of date.
            self._sessions.moved(stream.service, *pair)
        self.gaining = self.gaining or new
        owned[pair] = asked

    def _lose(self, stream: RequestStream, owned: dict[SessionName, float], pair: SessionName) -> None:
        if owned.pop(pair, None) is not None:
            self._sessions.moved(stream.service, *pair)

    # -- upkeep -----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renew the owners of sessions whose keys have used up a third of their time, a bounded number at once.

        Raises:
            BrokerError: the server can't be asked.
        """
        asked = self._monotonic()
        for stream, owned in list(self._owned.items()):
            due = [pair for pair, then in owned.items() if asked - then > _KEEP_EVERY][:_MOST]
            if not due:
                continue
            for pair, verdict in zip(due, await self._own(stream, due, [(b"", 0, False)] * len(due)), strict=True):
                if verdict == b"moved":
                    self._lose(stream, owned, pair)
                elif pair in owned:
                    self._gain(stream, owned, pair, asked, verdict)

    def release(self, service: str, pair: SessionName, *, lost: bool) -> None:
        """Give up a session that has ended here. Returns at once; all of one tick go together."""
        for stream, owned in list(self._owned.items()):
            if stream.service == service and owned.pop(pair, None) is not None:
                keys = self._key(stream, pair), self._keys.snapshot(stream.queue, session_digest(*pair))
                self._given_up.append((keys, int(lost)))
                if len(self._given_up) == 1:
                    asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        given_up, self._given_up = self._given_up, []
        for part in _parts(given_up):
            keys = tuple(key for pair, _ in part for key in pair)
            # Keys that stay, since this failed, have a TTL.
            self._link.run(scripts.DISOWN, keys, (self._instance, *(lost for _, lost in part)), repeatable=True)

    async def before(self, deliveries: Sequence[StreamDelivery]) -> list[list[bytes]]:
        """Return for each the entries that came before it in its session and have not ended.

        Raises:
            BrokerError: the server can't be asked.
        """
        found: dict[bytes, list[bytes]] = {}
        for stream in {delivery.queue for delivery in deliveries}:
            asked = [delivery for delivery in deliveries if delivery.queue is stream]
            for start in range(0, len(asked), _MOST_LINES):
                part = asked[start : start + _MOST_LINES]
                args = [arg for each in part for arg in (session_digest(each.request.user, each.request.session), each.entry, each.after)]
                keys = (stream.key, self._keys.order(stream.queue))
                answers = await self._link.execute_script(scripts.LINE, keys, tuple(args), repeatable=True)
                found |= {each.entry: answer.split() for each, answer in zip(part, answers, strict=True)}
        return [found[delivery.entry] for delivery in deliveries]

    def _key(self, stream: RequestStream, pair: SessionName) -> str:
        return self._keys.session(stream.queue, session_digest(*pair))


def _parts(given_up: list[tuple[tuple[str, str], int]]) -> Iterator[list[tuple[tuple[str, str], int]]]:
    for start in range(0, len(given_up), _MOST):
        yield given_up[start : start + _MOST]
