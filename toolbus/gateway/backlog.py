"""``Backlog``: the lengths of the queues, for metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from toolbus.broker.admin import Admin, ServiceOverview
from toolbus.results import BrokerError
from toolbus.settings import Settings

# Seconds for which the lengths of the queues are kept, and within which the server must have told them.
_KEPT = 1.0
_PATIENCE = 3.0


class Backlog:
    """The lengths of the queues, asked for at most once a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._asked = 0.0
        self._found: Sequence[ServiceOverview] | None = None

    async def read(self) -> Sequence[ServiceOverview] | None:
        """Return the services as they are now, or None when the server does not say."""
        async with self._lock:
            if time.monotonic() - self._asked > _KEPT:
                self._found = await _services(self._settings)
                self._asked = time.monotonic()
            return self._found


async def _services(settings: Settings) -> Sequence[ServiceOverview] | None:
    if settings.url.startswith("memory:"):
        return ()
    try:
        async with asyncio.timeout(_PATIENCE), Admin(settings) as admin:
            return await admin.services()
    except (BrokerError, TimeoutError):
        return None
