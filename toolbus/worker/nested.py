"""The bus that handlers use for nested calls: opened when one first makes a call, closed with the worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolbus.settings import Settings

if TYPE_CHECKING:
    from toolbus import ToolBus


class NestedBus:
    """One bus for all nested calls of a worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._bus: ToolBus | None = None

    async def get(self) -> ToolBus:
        """The open bus.

        :raises BrokerError: the server can't be reached.
        """
        # Through the public door, and only now: worker and client know nothing of each other.
        from toolbus import ToolBus  # noqa: PLC0415

        async with self._lock:
            if self._bus is None:
                bus = ToolBus(settings=self._settings)
                await bus.open()
                self._bus = bus
            return self._bus

    async def aclose(self) -> None:
        """Close the bus, if a handler ever needed it."""
        if self._bus is not None:
            await self._bus.aclose()
            self._bus = None
