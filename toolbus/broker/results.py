"""Keep the results of a session's earlier calls, to which later calls refer."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols.documents import MOST_BYTES, MOST_RESULTS
from toolbus.broker.reading import skip
from toolbus.broker.transport.command import ReplyError
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError
from toolbus.settings import Settings


class RedisSessionResults:
    """``SessionResults`` on a server."""

    def __init__(self, link: Transport, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._ttl = int(settings.retention * 1000)

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first."""
        key = self._keys.results(session_digest(user, session))
        try:
            found: list[bytes] = await self._link.execute("LRANGE", key, -MOST_RESULTS, -1, repeatable=True)
        except ReplyError as error:
            skip(key, str(error))
            return []
        return found

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session; a server that takes none is told of in the log."""
        if not documents:
            return
        key = self._keys.results(session_digest(user, session))
        args = (self._ttl, MOST_RESULTS, MOST_BYTES, *documents)
        try:
            # Twice the same result is one for readers, who take the latest of each call.
            await self._link.execute_script(scripts.KEEP, (key,), args, repeatable=True)
        except BrokerError as error:
            telemetry.log.warning("results.unkept", user=user, session=session, error=str(error))
