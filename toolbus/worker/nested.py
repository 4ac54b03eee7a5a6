"""The bus that handlers use for nested calls: opened when one first makes a call, closed with the worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolbus import telemetry
from toolbus.results import BrokerUnavailable
from toolbus.settings import Settings

_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0

if TYPE_CHECKING:
    from toolbus import ToolBus


class NestedBus:
    """One bus for all nested calls of a worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._bus: ToolBus | None = None

    async def get(self) -> ToolBus:
        """The open bus. While the server can't be reached it is tried again, for as long as the call that asks may run.

        :raises BrokerError: the server refuses us.
        """
        async with self._lock:
            delay = _RETRY_FIRST
            while self._bus is None:
                # Importing it takes tenths of a second, in which the worker's calls go on.
                bus = (await asyncio.to_thread(_door))(settings=self._settings)
                try:
                    await bus.open()
                except BrokerUnavailable as error:
                    telemetry.log.warning("nested.unavailable", error=str(error), retry_in=delay)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _RETRY_MOST)
                else:
                    self._bus = bus
            return self._bus

    async def close_session(self, user: str, session: str) -> None:
        """End a session that handlers' calls were made in."""
        if self._bus is not None:
            await self._bus.end_session(user, session)

    async def aclose(self) -> None:
        """Close the bus, if a handler ever needed it."""
        if self._bus is not None:
            await self._bus.aclose()
            self._bus = None


def _door() -> type[ToolBus]:
    """Through the public door, and only when it is needed: worker and client know nothing of each other."""
    from toolbus import ToolBus  # noqa: PLC0415

    return ToolBus
