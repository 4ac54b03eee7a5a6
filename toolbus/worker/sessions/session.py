"""A session as services and handlers see it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from toolbus.broker.protocols import Delivery
from toolbus.envelope import Request
from toolbus.results import ErrorInfo


class Session(NamedTuple):
    """A session of one user. It equals the tuple ``(user, id)``, so that users with equal ids stay apart in a dict.

    Attributes:
        user: the tenant.
        id: what ``bus.bind(session=…)`` said; empty for calls without a session, which share the user's own.
    """

    user: str
    id: str


class SessionRun(Protocol):
    """A run of a handler, as its session sees it."""

    delivery: Delivery
    task: asyncio.Task[None] | None

    async def execute(self) -> None:
        """Run the handler to its end and answer."""

    def stop(self, error: ErrorInfo | None) -> Any:
        """End the run now."""


class SessionBook(Protocol):
    """Counts the calls of one service in their sessions."""

    def start(self, run: SessionRun) -> asyncio.Task[None]:
        """Start a call in its session."""

    def opened_by(self, request: Request) -> bool:
        """Return whether a running call is the one that opened its session here."""
