"""The routes of hosts in one process."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence

from toolbus.broker.protocols.documents import HostId, OutputLine, Renewed
from toolbus.broker.routes import MOST_LINE, MOST_LINES


class MemoryRoutes:
    """``Routes`` in process."""

    def __init__(self) -> None:
        # Until when, and its routes.
        self._hosts: dict[HostId, tuple[float, dict[str, bytes]]] = {}
        self._claims: dict[str, tuple[float, HostId]] = {}
        self._output: dict[str, deque[OutputLine]] = defaultdict(lambda: deque(maxlen=MOST_LINES))
        self._entries = itertools.count()

    async def renew(
        self, host: HostId, lease: float, *, changed: Mapping[str, bytes], gone: Collection[str] = (), claims: Collection[str] = ()
    ) -> Renewed:
        """Keep a host's routes for another lease."""
        now = time.monotonic()
        routes = {**self._live().get(host, {}), **changed}
        for tool in gone:
            routes.pop(tool, None)
        self._hosts[host] = now + lease, routes
        mine = frozenset(tool for tool in claims if self._is_free(tool, host, now))
        self._claims.update(dict.fromkeys(mine, (now + lease, host)))
        return Renewed(len(routes), mine)

    async def release(self, host: HostId, claims: Collection[str]) -> None:
        """Let other hosts serve tools that this one served alone."""
        for tool in claims:
            if tool in self._claims and self._claims[tool][1] == host:
                del self._claims[tool]

    async def leave(self, host: HostId, claims: Collection[str]) -> None:
        """Forget a host, and release its claims."""
        await self.release(host, claims)
        self._hosts.pop(host, None)

    async def all(self) -> dict[HostId, dict[str, bytes]]:
        """Return the routes of every live host."""
        return {host: dict(routes) for host, routes in self._live().items() if routes}

    async def write(self, tool: str, host: HostId, lines: Sequence[str]) -> None:
        """Append lines of a program's output."""
        for line in lines[-MOST_LINES:]:
            entry = f"{int(time.time() * 1000)}-{next(self._entries)}"
            self._output[tool].append(OutputLine(entry, host, line[:MOST_LINE]))

    async def output(self, tool: str, most: int = 50) -> list[OutputLine]:
        """Return the latest lines of a tool's programs."""
        return list(self._output.get(tool, ()))[-most:]

    async def output_after(self, tool: str, entry: str) -> list[OutputLine]:
        """Return lines after the one at ``entry``."""
        after = int(entry.partition("-")[2] or -1)
        return [line for line in self._output.get(tool, ()) if int(line.entry.partition("-")[2]) > after]

    def _live(self) -> dict[HostId, dict[str, bytes]]:
        now = time.monotonic()
        return {host: routes for host, (until, routes) in self._hosts.items() if until > now}

    def _is_free(self, tool: str, host: HostId, now: float) -> bool:
        until, holder = self._claims.get(tool, (0.0, None))
        return holder == host or until <= now
