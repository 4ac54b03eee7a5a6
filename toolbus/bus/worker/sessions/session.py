"""A session as services and handlers see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ErrorInfo

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery


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
    restarted: bool
    abandoned: bool

    @property
    def unbegun(self) -> bool:
        """True until it has begun, or was answered."""

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""

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

    def token(self, request: Request) -> str:
        """Return the token of the state of a running call's session; empty when no state is kept."""

    def value(self, request: Request) -> Any:
        """Return the state of a running call's session, as its service made it."""

    def enter(self, delivery: Delivery) -> None:
        """Take note that a call's handler may change the state of its session from now on."""

    async def leave(self, delivery: Delivery, *, keep: bool, done: bool) -> bool:
        """Take note that a call's handler changes the state no more; keep a snapshot, for a call that is ``done`` or is tried again.

        Returns:
            False when another worker has the session, so that what the call changed is lost.
        """

    def forget(self, delivery: Delivery) -> None:
        """Forget the snapshot of a delivery's session, because it is out of date."""
