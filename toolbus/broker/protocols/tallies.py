"""The counts that all processes of a namespace share."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """The cost of one user's calls of one tool; a tool that was called as a service has the service's id."""

    user: str
    tool: str
    calls: int = 0
    errors: int = 0
    ms: int = 0
    bytes: int = 0


class Tallies(Protocol):
    """The counts that all processes of a namespace share."""

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate of ``limit`` per ``period`` seconds; returns 0, or the seconds until there is room.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota, which starts anew in each period of the server's clock; returns and raises as ``spend``."""

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage. Returns at once."""

    async def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days (UTC, today is the first), by user and tool.

        Raises:
            BrokerError: the server could not be asked.
        """
