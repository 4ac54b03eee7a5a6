"""Shared parts of the contract's tests: both transports, and workers and buses with a test's settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from tests.servers import eventually
from toolbus import Session, Settings, ToolBus, ToolResult, ToolService, Worker, tool
from toolbus.bus.broker.server.access import rights
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.results import ConfirmationClosed

# A worker's handlers call other tools.
_RIGHTS = {"agent": ("agent",), "worker": ("worker", "nested"), "operator": ("operator",), "platform": ("platform",)}


class Place:
    """One namespace on one transport, where a test runs workers and buses; with ``roles`` each has the rights of its role alone."""

    def __init__(self, url: str, namespace: str, *, roles: bool = False) -> None:
        self.settings = Settings.load({}, url=url, namespace=namespace, lease=2.0, grace=5.0)
        self._users = [f"{namespace}-{role}" for role in _RIGHTS] if roles and not url.startswith("memory:") else []
        if self._users:
            with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as made:
                for role, user in zip(_RIGHTS, self._users, strict=True):
                    made.execute_command("ACL", "SETUSER", user, "on", ">secret", *rights(_RIGHTS[role], namespace).rules().split())
                made.execute()

    def close(self) -> None:
        """Remove the users."""
        if self._users:
            with redis.Redis.from_url(self.settings.url) as client:
                client.execute_command("ACL", "DELUSER", *self._users)

    def settings_of(self, role: str, changes: Mapping[str, Any]) -> Settings:
        """The settings of a process with a role."""
        url = self.settings.url
        if self._users:
            url = url.replace("://", f"://{self.settings.namespace}-{role}:secret@")
        return self.with_(**{"url": url, **changes})

    def with_(self, **changes: Any) -> Settings:
        """The settings, some of them changed."""
        return Settings.load(base=self.settings, **changes)

    def worker(self, *services: object, **changes: Any) -> Worker:
        """A worker that has not been started."""
        return Worker(list(services), settings=self.settings_of("worker", changes))

    def bus(self, *, role: str = "agent", **changes: Any) -> ToolBus:
        """A bus that has not been opened."""
        return ToolBus(settings=self.settings_of(role, changes))

    @asynccontextmanager
    async def serving(self, *services: object, role: str = "agent", **changes: Any) -> AsyncIterator[ToolBus]:
        """A worker with these services, and an open bus."""
        async with self.worker(*services, **changes), self.bus(role=role, **changes) as bus:
            yield bus


Scenario = Callable[[Place], Any]


@tool(service="plug", effect="read")
async def plugged() -> str:
    """Be there."""
    return "here"


async def out_of_time(bus: ToolBus, tool: str, arguments: dict[str, Any] | None = None) -> ToolResult:
    """Call a tool whose time is up while it runs: the shortest time, from 0.1 s, in which this machine begins it."""
    for doubled in range(7):
        result = await bus.call(tool, arguments, timeout=0.1 * 2**doubled)
        if result.error is None or result.error.code not in {"not_taken", "began_late"}:
            break
    return result


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


class KeptLists(ToolService):
    """A service whose sessions are lists, which outlive their workers as they are."""

    session_lost = "restore"

    def open_session(self, session: Session) -> list[str]:  # type: ignore[override]
        """Begin with nothing."""
        return []

    def save_session(self, session: Session, state: list[str]) -> list[str]:
        """Keep all of it."""
        return state

    def load_session(self, session: Session, saved: list[str]) -> list[str]:
        """Go on with what was kept."""
        return saved
