"""Bearer tokens whose records stand on the server, for every replica of the gateway."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from toolbus.client.bus import ToolBus
from toolbus.gateway.auth.credentials import Credential, accepted
from toolbus.gateway.problems import Problem
from toolbus.results import BrokerError
from toolbus.tokens import TokenRecord, id_of

TRUSTED = 2.0
"""Seconds for which a record that was read counts, so that a revocation counts everywhere after as many."""

_MOST_KEPT = 10_000
_WITHIN = 5.0


class SharedTokens:
    """A ``Source`` of the tokens of a namespace."""

    def __init__(self, bus: ToolBus, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._bus = bus
        self._clock = clock
        self._now = now
        self._kept: OrderedDict[str, tuple[float, TokenRecord | None]] = OrderedDict()

    def takes(self, token: str) -> bool:
        """Return whether a token has the form of toolbus's own."""
        return id_of(token) is not None

    async def credential(self, token: str) -> Credential | None:
        """Return whom a token of the namespace stands for."""
        record = await self._record(id_of(token) or "")
        return None if record is None else accepted(record, token, self._now())

    async def _record(self, id: str) -> TokenRecord | None:
        until, record = self._kept.get(id, (0.0, None))
        if self._clock() < until:
            return record
        asked = self._clock()
        try:
            async with asyncio.timeout(_WITHIN):
                record = await self._bus.tokens.get(id)
        except (BrokerError, TimeoutError):
            raise Problem(503, "unavailable", "the server that knows the tokens can't be asked", {"Retry-After": "1"}) from None
        self._kept[id] = (asked + TRUSTED, record)
        self._kept.move_to_end(id)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return record
