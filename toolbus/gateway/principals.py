"""Describe who asks: the principal of a request, and what it may do."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from starlette.requests import HTTPConnection

from toolbus.client.bus import ToolBus
from toolbus.client.tools.view import ToolView
from toolbus.client.views import BusView

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

    def view(self, bus: ToolBus) -> BusView:
        """Return the bus as this principal's user."""
        return bus.bind(user=self.user)

    def sees(self, bus: ToolBus) -> ToolView:
        """Return the tools that this principal may see and call."""
        return bus.tools.filter(user=self.user, groups=self.groups, names=self.tools)


class Authenticator(Protocol):
    """Finds out who sent a request."""

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return who sent the request.

        Raises:
            Problem: 401, nobody that is known; 429, too many requests of this principal.
        """


class Everyone:
    """Takes every sender for one principal; only for a gateway that listens on loopback."""

    def __init__(self, principal: Principal | None = None) -> None:
        self._principal = principal or Principal("local", may=frozenset({"call", "observe", "operate"}))

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return the one principal."""
        return self._principal
