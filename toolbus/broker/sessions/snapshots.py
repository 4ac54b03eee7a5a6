"""Snapshots of sessions' states, which outlive the workers that had them."""

from __future__ import annotations

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols import Snapshot
from toolbus.broker.reading import skip, text
from toolbus.broker.transport.command import Reply, ReplyError
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError, EnvelopeError

SNAPSHOT_TTL = 86_400
# As long as a call's id may be, and longer than any token.
_MOST_WORD = 64


class Snapshots:
    """Writes and reads the snapshots of sessions."""

    def __init__(self, link: Transport, keys: Keys, instance: str) -> None:
        self._link = link
        self._keys = keys
        self._instance = instance

    def save(self, queue: str, user: str, session: str, snapshot: Snapshot) -> None:
        """Keep a snapshot, or forget the last one when it is empty. It is written before the last frame of the call whose state it is."""
        digest = session_digest(user, session)
        keys = (self._keys.session(queue, digest), self._keys.snapshot(queue, digest))
        args = (self._instance, snapshot.state, snapshot.call, snapshot.document, SNAPSHOT_TTL * 1000)

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError) or not reply:
                reason = str(reply) if isinstance(reply, BrokerError) else "another worker has the session"
                telemetry.log.warning("session.unsaved", queue=queue, user=user, session=session, error=reason)

        self._link.run(scripts.SAVE, keys, args, done, repeatable=True)

    async def load(self, queue: str, user: str, session: str) -> Snapshot | None:
        """Return the snapshot of a session, or None.

        Raises:
            BrokerError: the server can't be asked.
        """
        key = self._keys.snapshot(queue, session_digest(user, session))
        try:
            state, call, document = await self._link.execute("HMGET", key, "t", "c", "d", repeatable=True)
        except ReplyError as error:
            skip(key, str(error))
            return None
        if state is None or document is None:
            return None
        try:
            return Snapshot(text(state, most=_MOST_WORD), text(call or b"", most=_MOST_WORD), document)
        except EnvelopeError as error:
            skip(key, error)
            return None
