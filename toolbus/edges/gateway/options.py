"""Senders of requests, as a gateway knows them, and the options of a gateway."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from starlette.requests import HTTPConnection

from toolbus.bus.client.bus import BusView, ToolBus
from toolbus.bus.client.tools.view import ToolView

Permission = Literal["call", "observe", "operate"]
"""``call``: list tools and call them. ``observe``: read what operators read. ``operate``: change what operators change."""


class Principal(msgspec.Struct, frozen=True):
    """The sender of a request, as authenticated; no field comes from a request's body.

    Attributes:
        name: for logs: the token's name or the subject of a JWT.
        user: the bus's user, which is the tenant of its calls.
        groups: groups of the tools it may see and call; None for all.
        tools: names of the tools it may see and call; None for all.
        may: its permissions.
    """

    name: str
    user: str = ""
    groups: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    may: frozenset[Permission] = frozenset({"call"})

    @property
    def sight(self) -> tuple[str, frozenset[str] | None, frozenset[str] | None]:
        """The fields that decide on the tools that it sees: principals with the same one see the same."""
        return self.user, self.groups, self.tools

    @property
    def sees_all(self) -> bool:
        """True if no tool of its user is kept from it."""
        return self.groups is None and self.tools is None

    def view(self, bus: ToolBus) -> BusView:
        """Return the bus as this principal's user."""
        return bus.bind(user=self.user)

    def sees(self, bus: ToolBus) -> ToolView:
        """Return the tools that this principal may see and call."""
        return bus.tools.filter(user=self.user, groups=self.groups, names=self.tools)


ADMITTED = "toolbus.admitted"
"""The key of a request's scope for the principal who sent it, and the authenticator that said so."""


class Authenticator(Protocol):
    """Finds out who sent a request."""

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return who sent the request.

        Raises:
            Problem: 401, nobody that is known; 429, too many requests of this principal.
        """

    async def holds(self, connection: HTTPConnection, principal: Principal) -> bool:
        """Return whether the sender of a stream is still who it was, as far as is known; counts no request."""


class Everyone:
    """Takes every sender for one principal; only for a gateway that listens on loopback."""

    def __init__(self, principal: Principal | None = None) -> None:
        self._principal = principal or Principal("local", may=frozenset({"call", "observe", "operate"}))

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return the one principal."""
        return self._principal

    async def holds(self, connection: HTTPConnection, principal: Principal) -> bool:
        """Return True."""
        return True


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a gateway; times are in seconds.

    Attributes:
        chat: name of the tool or service that answers ``POST /chat``.
        heartbeat: longest silence of a stream of events.
        resume: for how long a call with an idempotency key goes on after its client has gone, so that the client can come back.
        buffer: megabytes of events that all streams together may hold for clients that read slowly.
        outage: for how long a request waits for a lost connection to the server before it is refused.
    """

    chat: str = "chat"
    heartbeat: float = 15.0
    resume: float = 10.0
    buffer: float = 128.0
    outage: float = 2.0
