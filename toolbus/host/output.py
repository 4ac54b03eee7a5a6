"""``ProgramOutput``: the lines of programs, gathered and written to the server together."""

from __future__ import annotations

import asyncio
from collections import deque

from toolbus import telemetry
from toolbus.backends.runner import Line
from toolbus.broker.protocols import HostId, Routes
from toolbus.broker.routes.limits import MOST_LINES
from toolbus.results import BrokerError

_GATHERED_FOR = 0.2


class ProgramOutput:
    """Gathers lines; a program that prints faster than they are written loses the oldest ones.

    Args:
        routes: where they are written to.
        host: id of the host.
    """

    def __init__(self, routes: Routes, host: HostId) -> None:
        self._routes = routes
        self._host = host
        self._waiting: dict[str, deque[str]] = {}
        self._news = asyncio.Event()
        self._failing = False

    def of(self, tool: str) -> Line:
        """Return what takes in the lines of a tool's programs."""

        def take(line: str) -> None:
            self._waiting.setdefault(tool, deque(maxlen=MOST_LINES)).append(line)
            self._news.set()

        return take

    async def run(self) -> None:
        """Write what was gathered, a few times a second at most, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHERED_FOR)
            await self.write()

    async def write(self) -> None:
        """Write what was gathered; what the server does not take is lost, and that is told once."""
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        try:
            for tool, lines in waiting.items():
                await self._routes.write(tool, self._host, list(lines))
            self._failing = False
        except BrokerError as error:
            if not self._failing:
                telemetry.log.warning("host.output_lost", error=str(error))
            self._failing = True
