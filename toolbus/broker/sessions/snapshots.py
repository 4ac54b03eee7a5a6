"""Snapshots of sessions' states, which outlive the workers that had them."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols import MOST_SNAPSHOT, NO_SNAPSHOT, Snapshot
from toolbus.broker.reading import skip, text
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.take.requests import StreamDelivery
from toolbus.broker.transport.command import Reply, ReplyError
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError, EnvelopeError

SNAPSHOT_TTL = 86_400
# As long as a call's id may be, and longer than any token.
_MOST_WORD = 64


class Snapshots:
    """Writes and reads the snapshots of sessions."""

    def __init__(self, link: Transport, keys: Keys, ownership: Ownership) -> None:
        self._link = link
        self._keys = keys
        self._ownership = ownership

    async def save(self, delivery: StreamDelivery, snapshot: Snapshot) -> bool:
        """Keep a snapshot, before what is sent next; return False when another worker has the session.

        The answer is waited for only where nothing else would tell: for a call in the order of its session, the server says at its finish
        that another worker has it.
        """
        if not await self._ownership.holds(delivery):
            return False
        kept = asyncio.get_running_loop().create_future()

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError) or not reply:
                self._tell(delivery, reply)
            if isinstance(reply, ReplyError):
                # What is kept is out of date, and a full server still lets go of it.
                self.forget(delivery)
            if not kept.done():
                kept.set_result(isinstance(reply, BrokerError) or bool(reply))

        args = (*self._caller(delivery), snapshot.state, snapshot.call, snapshot.document, SNAPSHOT_TTL * 1000)
        self._link.run(scripts.SAVE, self._keys_of(delivery), args, done, repeatable=True)
        return delivery.request.ordered or await kept

    def forget(self, delivery: StreamDelivery) -> None:
        """Forget the snapshot of a delivery's session, before what is sent next."""

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                self._tell(delivery, reply)

        args = (*self._caller(delivery), SNAPSHOT_TTL * 1000)
        self._link.run(scripts.FORGET, self._keys_of(delivery), args, done, repeatable=True)

    async def load(self, delivery: StreamDelivery) -> Snapshot | None:
        """Return the snapshot of a session, ``NO_SNAPSHOT`` when it can't be used, or None when there never was one.

        Raises:
            BrokerError: the server can't be asked.
        """
        key = self._snapshot(delivery)
        found = await self._link.execute_script(scripts.LOAD, (key,), (MOST_SNAPSHOT, _MOST_WORD), repeatable=True)
        if len(found) == 3:
            state, call, document = found
            try:
                return Snapshot(text(state, most=_MOST_WORD), text(call, most=_MOST_WORD), document)
            except EnvelopeError as error:
                skip(key, error)
        elif found:
            skip(key, found[0].decode("utf-8", "replace"))
        return NO_SNAPSHOT if found else None

    async def is_elsewhere(self, delivery: StreamDelivery) -> bool:
        """Return whether a worker that lives runs a call in the order of a delivery's session, although the session is this worker's now.

        Raises:
            BrokerError: the server can't be asked.
        """
        stream = delivery.queue
        keys = (stream.key, self._keys.order(stream.queue), stream.fence, self._keys.live)
        args = (stream.consumer, stream.service, self._digest(delivery))
        return bool(await self._link.execute_script(scripts.ELSEWHERE, keys, args, repeatable=True))

    def _keys_of(self, delivery: StreamDelivery) -> tuple[str, ...]:
        stream = delivery.queue
        return stream.key, stream.fence, self._keys.session(stream.queue, self._digest(delivery)), self._snapshot(delivery)

    def _caller(self, delivery: StreamDelivery) -> tuple[Any, ...]:
        needs = not delivery.request.ordered or self._ownership.doubts(delivery)
        return delivery.queue.consumer, *delivery.fence, delivery.entry, delivery.attempt, int(needs)

    def _snapshot(self, delivery: StreamDelivery) -> str:
        return self._keys.snapshot(delivery.queue.queue, self._digest(delivery))

    def _digest(self, delivery: StreamDelivery) -> str:
        return session_digest(delivery.request.user, delivery.request.session)

    def _tell(self, delivery: StreamDelivery, reply: Reply) -> None:
        request = delivery.request
        reason = str(reply) if isinstance(reply, BrokerError) else "another worker has the session"
        telemetry.log.warning("session.unsaved", queue=delivery.queue.queue, user=request.user, session=request.session, error=reason)
