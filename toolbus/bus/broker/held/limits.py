"""Count rates, quotas and usage for all processes together."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import math

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Usage
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import document, integer, skipping
from toolbus.bus.broker.transport.command import Reply
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash

KEPT_DAYS = 40
_TTL = KEPT_DAYS * 86_400_000
# A day's pairs of user and tool; what comes beyond them is counted together, so that no crowd of users fills the server.
MOST_PAIRS = 50_000
OTHERS = '["*","*"]'


class Tallies:
    """The counts that all processes of a namespace share."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._waiting: dict[str, list[int]] = {}

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate; returns 0 when there was room, else the seconds until there is.

        While the server can't be reached it waits. When a connection is lost at the wrong moment, one use may count twice.

        Raises:
            BrokerError: the server refuses, or the connection was closed for good.
        """
        return await self._count("rate", self._keys.rate(_digest(name)), limit, period)

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota, which starts anew in each period of the server's clock; returns and raises as ``spend``."""
        return await self._count("quota", self._keys.quota(_digest(name)), limit, period)

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage; what is counted in one tick goes as one command."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        counts = self._waiting.setdefault(msgspec.json.encode((user, tool)).decode(), [0, 0, 0, 0])
        for index, amount in enumerate((1, failed, round(ms), size)):
            counts[index] += amount

    async def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days (UTC, today is the first), by user and tool.

        Raises:
            BrokerError: the server can't be reached.
        """
        found: dict[str, list[int]] = {}
        for day in days_back(days):
            # A field that a scan brings twice counts once.
            counted = {field: value async for field, value in scan_hash(self._link, self._keys.usage(day))}
            for field, value in counted.items():
                name, _, pair = field.decode("utf-8", "replace").partition("[")
                if name not in _COUNTS:
                    continue
                with skipping(self._keys.usage(day), field=field):
                    amount = integer(value)
                    found.setdefault(f"[{pair}", [0, 0, 0, 0])[_COUNTS.index(name)] += amount
        rows: list[Usage] = []
        for pair, counts in found.items():
            with skipping("usage", field=pair):
                rows.append(Usage(*document(pair, tuple[str, str]), *counts))
        return sorted(rows, key=lambda row: (row.user, row.tool))

    async def _count(self, kind: str, key: str, limit: int, period: float) -> float:
        wait = await self._link.execute_script(scripts.COUNT_USES, (key,), (kind, limit, math.ceil(period * 1000)), repeatable=True)
        return integer(wait) / 1000

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        args = [part for pair, counts in waiting.items() for part in (pair, *counts)]
        key = self._keys.usage(next(iter(days_back(1))))
        self._link.run(scripts.COUNT_USES, (key,), ("usage", MOST_PAIRS, _TTL, OTHERS, *args), _sent, repeatable=True)


_COUNTS = ("calls", "errors", "ms", "bytes")


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def days_back(count: int) -> list[str]:
    """Return the last so many days (UTC), today first."""
    today = datetime.datetime.now(datetime.UTC).date()
    return [(today - datetime.timedelta(days=back)).isoformat() for back in range(max(1, min(count, KEPT_DAYS)))]


def _sent(reply: Reply) -> None:
    if isinstance(reply, Exception):
        telemetry.log.warning("usage.uncounted", error=str(reply))
