"""The bus that handlers use for nested calls: opened when one first makes a call, closed with the worker."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from typing import Protocol, cast

from toolbus import telemetry
from toolbus.results import BrokerUnavailable
from toolbus.settings import Settings
from toolbus.worker.run.invocation import Caller

_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0


class Bus(Caller, Protocol):
    """The part of a ``ToolBus`` that handlers use to call other tools."""

    async def open(self) -> None:
        """Connect."""

    async def aclose(self) -> None:
        """Disconnect."""

    async def end_session(self, user: str, session: str) -> None:
        """End a session at every worker."""


class NestedBus:
    """One bus for all nested calls of a worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The bus outlives the call that opens it: what it starts is not to see that call's context variables.
        self._context = contextvars.copy_context()
        self._lock = asyncio.Lock()
        self._bus: Bus | None = None

    async def get(self) -> Bus:
        """Return the open bus. While the server can't be reached it is tried again, for as long as the call that asks may run.

        Raises:
            BrokerError: the server refuses the connection.
        """
        async with self._lock:
            delay = _RETRY_FIRST
            while self._bus is None:
                # Importing it takes tenths of a second, in which the worker's calls go on.
                bus = await asyncio.to_thread(_new_bus, self._settings)
                try:
                    await asyncio.create_task(bus.open(), context=self._context.copy())
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
        # While it closes, nothing more can be asked of it.
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.aclose()


def _new_bus(settings: Settings) -> Bus:
    """Return a bus that is not open yet.

    The client is found by name when the first nested call needs it, since the worker package does not depend on it.
    """
    return cast("Bus", importlib.import_module("toolbus.client.bus").ToolBus(settings=settings).for_handlers())
