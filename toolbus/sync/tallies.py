"""``Tallies``: the counters that all processes of a namespace share, for synchronous callers."""

from __future__ import annotations

from collections.abc import Callable

from toolbus.broker import protocols
from toolbus.broker.protocols import Usage
from toolbus.sync.loop import FindLoop


class Tallies:
    """The counts that all processes of a namespace share; see ``toolbus.ToolBus.tallies``."""

    def __init__(self, loop: FindLoop, tallies: Callable[[], protocols.Tallies]) -> None:
        self._loop = loop
        self._tallies = tallies

    def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate of ``limit`` per ``period`` seconds; returns 0, or the seconds until there is room."""
        return self._loop().run(lambda: self._tallies().spend(name, limit, period))

    def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota, which starts anew in each period of the server's clock; returns as ``spend``."""
        return self._loop().run(lambda: self._tallies().use(name, limit, period))

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage."""
        self._loop().run(lambda: self._tallies().count(user, tool, ms=ms, size=size, failed=failed))

    def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days (UTC, today is the first), by user and tool."""
        return self._loop().run(lambda: self._tallies().usage(days))
