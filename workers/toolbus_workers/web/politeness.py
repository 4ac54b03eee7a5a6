"""``Politeness``: no host gets more requests at a time, or faster, than it would take from a patient reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PARALLEL = 2
PAUSE = 0.5

# Beyond these, hosts that nobody uses now are forgotten.
_MOST_HOSTS = 256


class Turn:
    """The right to send one request to a host, once ``begin`` has returned."""

    def __init__(self, pause: float, parallel: int) -> None:
        self.users = 0
        self.places = asyncio.Semaphore(parallel)
        self.pause = pause
        self.next = 0.0

    async def begin(self, pause: float = 0.0) -> None:
        """Wait until the host's last request is long enough ago."""
        now = time.monotonic()
        start = max(now, self.next)
        self.next = start + max(self.pause, pause)
        await asyncio.sleep(start - now)


class Politeness:
    """Turns of hosts, shared by all calls of a worker.

    Args:
        parallel: requests to one host at a time.
        pause: seconds between the beginnings of two requests to one host.
    """

    def __init__(self, *, parallel: int = PARALLEL, pause: float = PAUSE) -> None:
        self._parallel = parallel
        self._pause = pause
        self._hosts: dict[str, Turn] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[Turn]:
        """Wait for a place among the requests to a host; the request itself follows ``Turn.begin``."""
        if len(self._hosts) > _MOST_HOSTS:
            self._forget()
        turn = self._hosts.setdefault(host, Turn(self._pause, self._parallel))
        turn.users += 1
        try:
            async with turn.places:
                yield turn
        finally:
            turn.users -= 1

    def _forget(self) -> None:
        now = time.monotonic()
        for host in [host for host, turn in self._hosts.items() if not turn.users and turn.next < now]:
            del self._hosts[host]
