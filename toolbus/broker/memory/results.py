"""The results of sessions' earlier calls within one event loop, for ``memory://``."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence

from toolbus.broker.protocols.documents import MOST_BYTES, MOST_RESULTS
from toolbus.settings import Settings

_MOST_SESSIONS = 1024


class MemorySessionResults:
    """``SessionResults`` within one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._ttl = settings.retention
        self._kept: OrderedDict[tuple[str, str], tuple[float, list[bytes]]] = OrderedDict()

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first."""
        until, found = self._kept.get((user, session), (0.0, []))
        return [*found] if time.monotonic() < until else []

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session."""
        found = [*await self.read(user, session), *documents][-MOST_RESULTS:]
        while sum(map(len, found)) > MOST_BYTES:
            del found[0]
        self._kept[user, session] = (time.monotonic() + self._ttl, found)
        self._kept.move_to_end((user, session))
        if len(self._kept) > _MOST_SESSIONS:
            self._kept.popitem(last=False)
