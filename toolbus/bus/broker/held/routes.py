"""Routes of recorded tools: hosts under their leases, tools that one host alone serves, and the output of programs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from toolbus.bus.broker.protocols import HostId, OutputLine, Renewed
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import moment, skipping, text
from toolbus.bus.broker.transport.command import fields_of
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash
from toolbus.bus.values.encoding import whole_text

MOST_LINES = 300
"""About as many lines of output are kept of a tool."""

MOST_LINE = 2_048
"""Most characters of a line; the rest is cut off."""

OUTPUT_KEPT = 86_400.0
"""Seconds for which output is kept after its last line."""


_MOST_HOSTS = 1_000
# Routes of one write: a host's first renewal tells of all of its tools.
_MOST_AT_ONCE = 500
_PAGE = 256


class Routes:
    """The routes of hosts: documents by tool, which go when their host's lease ends."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

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
        left = list(changed.items())
        while len(left) > _MOST_AT_ONCE:
            await self._renew(host, lease, left[:_MOST_AT_ONCE], (), ())
            left = left[_MOST_AT_ONCE:]
        return await self._renew(host, lease, left, gone, claims)

    async def _renew(
        self, host: HostId, lease: float, changed: Sequence[tuple[str, bytes]], gone: Collection[str], claims: Collection[str]
    ) -> Renewed:
        asked = list(claims)
        words = [word for pair in changed for word in pair]
        args = (host, int(lease * 1000), len(changed), *words, *gone)
        known, held = await self._link.execute_script(scripts.ROUTES, self._keys_of(host, asked), args, repeatable=True)
        return Renewed(known, frozenset(tool for tool, mine in zip(asked, held, strict=True) if mine))

    async def release(self, host: HostId, claims: Collection[str]) -> None:
        """Let other hosts serve tools that this one served alone.

        Raises:
            BrokerError: the server could not be told.
        """
        await self._link.execute_script(scripts.ROUTES, self._keys_of(host, claims), (host, "", 0), repeatable=True)

    async def leave(self, host: HostId, claims: Collection[str]) -> None:
        """Forget a host, and release its claims.

        Raises:
            BrokerError: the server could not be told.
        """
        await self._link.execute_script(scripts.ROUTES, self._keys_of(host, claims), (host, 0, 0), repeatable=True)

    async def retire(self, host: HostId) -> None:
        """Forget a host that is known to be dead, and release the tools that it served alone."""
        await self.leave(host, await self._routes_of(host))

    async def all(self) -> dict[HostId, dict[str, bytes]]:
        """Return the routes of every live host: documents by tool, by host.

        Raises:
            BrokerError: the server could not be asked.
        """
        found = await self._link.execute("ZRANGE", self._keys.hosts, 0, _MOST_HOSTS - 1, repeatable=True)
        hosts = [HostId(host) for each in found if (host := self._name(self._keys.hosts, each))]
        routes = await asyncio.gather(*map(self._routes_of, hosts))
        # One whose lease has ended has no routes any more, and stays in the list until another one renews.
        return {host: of_host for host, of_host in zip(hosts, routes, strict=True) if of_host}

    async def write(self, tool: str, host: HostId, lines: Sequence[str]) -> None:
        """Append lines of a program's output; long ones are cut, and the oldest ones go.

        Raises:
            BrokerError: the server could not be told.
        """
        words = [word for line in lines[-MOST_LINES:] for word in ("h", host, "l", whole_text(line[:MOST_LINE]))]
        args = (MOST_LINES, int(OUTPUT_KEPT * 1000), 4, *words)
        await self._link.execute_script(scripts.APPEND, (self._keys.output(tool),), args)

    async def output(self, tool: str, most: int = 50) -> list[OutputLine]:
        """Return the latest lines of a tool's programs, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """
        key = self._keys.output(tool)
        return self._lines(key, reversed(await self._link.execute("XREVRANGE", key, "+", "-", "COUNT", most, repeatable=True)))

    async def output_after(self, tool: str, entry: str) -> list[OutputLine]:
        """Return lines after the one at ``entry``, the oldest first; from the first that is kept when that is empty.

        Raises:
            BrokerError: the server could not be asked.
        """
        key = self._keys.output(tool)
        start = f"({entry}" if entry else "-"
        return self._lines(key, await self._link.execute("XRANGE", key, start, "+", "COUNT", _PAGE, repeatable=True))

    def _keys_of(self, host: HostId, claims: Collection[str]) -> tuple[str, ...]:
        return (self._keys.hosts, self._keys.routes(host), *map(self._keys.single, claims))

    async def _routes_of(self, host: HostId) -> dict[str, bytes]:
        key = self._keys.routes(host)
        return {tool: value async for field, value in scan_hash(self._link, key) if (tool := self._name(key, field))}

    def _name(self, key: str, name: bytes) -> str:
        with skipping(key, field=name):
            return text(name)
        return ""

    def _lines(self, key: str, entries: Iterable[tuple[bytes, list[bytes]]]) -> list[OutputLine]:
        found: list[OutputLine] = []
        for entry, flat in entries:
            fields = fields_of(flat)
            with skipping(key):
                moment(entry.partition(b"-")[0])
                found.append(OutputLine(entry.decode(), text(fields.get(b"h", b"")), text(fields.get(b"l", b""), most=MOST_LINE)))
        return found
