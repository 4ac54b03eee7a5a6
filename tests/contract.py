"""Shared parts of the contract's tests: both transports, and workers and buses with a test's settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.confirmations import ConfirmationRequest
from toolbus.results import ConfirmationClosed


class Place:
    """One namespace on one transport, where a test runs workers and buses."""

    def __init__(self, url: str, namespace: str) -> None:
        self.settings = Settings.load({}, url=url, namespace=namespace, lease=2.0, grace=5.0)

    def with_(self, **changes: Any) -> Settings:
        """The settings, some of them changed."""
        return Settings.load(base=self.settings, **changes)

    def worker(self, *services: object, **changes: Any) -> Worker:
        """A worker that has not been started."""
        return Worker(list(services), settings=self.with_(**changes))

    def bus(self, **changes: Any) -> ToolBus:
        """A bus that has not been opened."""
        return ToolBus(settings=self.with_(**changes))

    @asynccontextmanager
    async def serving(self, *services: object, **changes: Any) -> AsyncIterator[ToolBus]:
        """A worker with these services, and an open bus."""
        async with self.worker(*services, **changes), self.bus(**changes) as bus:
            yield bus


Scenario = Callable[[Place], Any]


@tool(service="plug", effect="read")
async def plugged() -> str:
    """Be there."""
    return "here"


async def first_of(bus: ToolBus) -> ConfirmationRequest:
    """The one open request."""
    [found] = await eventually(bus.confirmations.pending, timeout=20.0)
    return found


async def withdrawn(bus: ToolBus, request: ConfirmationRequest) -> None:
    """Wait until nobody is asked any more, and nobody can answer."""

    async def gone() -> bool:
        return not await bus.confirmations.pending()

    await eventually(gone)
    with pytest.raises(ConfirmationClosed):
        await bus.confirmations.allow(request.id)
