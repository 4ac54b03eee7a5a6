"""``Politeness``: limit the number and the rate of requests to each host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PARALLEL = 2
PAUSE = 0.5

# Beyond this number, hosts without running requests are forgotten.
_MOST_HOSTS = 256


class Turn:
    """The permission to send one request to a host, once ``begin`` has returned."""

    def __init__(self, pause: float, parallel: int) -> None:
        self.users = 0
        self.places = asyncio.Semaphore(parallel)
        self.pause = pause
        self.next = 0.0

    async def begin(self, pause: float = 0.0) -> None:
        """Wait until the pause after the host's last request is over."""
        now = time.monotonic()
        start = max(now, self.next)
        self.next = start + max(self.pause, pause)
        await asyncio.sleep(start - now)


class Politeness:
    """Turns for each host, shared by all calls of a worker.

    Args:
        parallel: most requests to one host at a time.
        pause: least seconds between the starts of two requests to one host.
    """

    def __init__(self, *, parallel: int = PARALLEL, pause: float = PAUSE) -> None:
        self._parallel = parallel
        self._pause = pause
        self._hosts: dict[str, Turn] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[Turn]:
        """Wait for a slot among the requests to a host; the request itself follows ``Turn.begin``."""
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
