"""The places where recorded tools run, and what their programs print."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NewType, Protocol

HostId = NewType("HostId", str)
"""The id of a host, fresh at each start; its worker has another one."""


class Renewed(NamedTuple):
    """The answer to a renewal.

    Attributes:
        known: how many routes of the host are kept; fewer than it has when some were lost.
        claims: the tools that the host may serve alone, of those that it asked for.
    """

    known: int
    claims: frozenset[str]


class OutputLine(NamedTuple):
    """A line of a program's output.

    Attributes:
        entry: its place, after which to go on; it begins with the milliseconds since 1970 at which it was written.
        host: the host of the program.
        text: the line, without its end.
    """

    entry: str
    host: str
    text: str


class Routes(Protocol):
    """The routes of hosts: documents by tool, which go when their host's lease ends."""

    async def renew(
        self, host: HostId, lease: float, *, changed: Mapping[str, bytes], gone: Collection[str] = (), claims: Collection[str] = ()
    ) -> Renewed:
        """Keep a host's routes for another ``lease`` seconds, in one write.

        Args:
            host: its id.
            lease: seconds.
            changed: routes by tool that are new or have changed.
            gone: tools that it serves no longer.
            claims: tools that it serves alone, or wants to.

        Raises:
            BrokerError: the server could not be told.
        """

    async def release(self, host: HostId, claims: Collection[str]) -> None:
        """Let other hosts serve tools that this one served alone.

        Raises:
            BrokerError: the server could not be told.
        """

    async def leave(self, host: HostId, claims: Collection[str]) -> None:
        """Forget a host, and release its claims.

        Raises:
            BrokerError: the server could not be told.
        """

    async def all(self) -> dict[HostId, dict[str, bytes]]:
        """Return the routes of every live host: documents by tool, by host.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def write(self, tool: str, host: HostId, lines: Sequence[str]) -> None:
        """Append lines of a program's output; long ones are cut, and the oldest ones go.

        Raises:
            BrokerError: the server could not be told.
        """

    async def output(self, tool: str, most: int = 50) -> list[OutputLine]:
        """Return the latest lines of a tool's programs, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def output_after(self, tool: str, entry: str) -> list[OutputLine]:
        """Return lines after the one at ``entry``, the oldest first; from the first that is kept when that is empty.

        Raises:
            BrokerError: the server could not be asked.
        """
