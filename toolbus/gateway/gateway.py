"""``Gateway``: what every route needs."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from toolbus.client.bus import ToolBus
from toolbus.gateway.principals import Authenticator, Permission, Principal
from toolbus.gateway.problems import Problem


class Gateway:
    """The bus and who may use it; routes find it as ``request.app.state.gateway``.

    Args:
        bus: open while the application runs.
        authenticator: finds out who sent a request.
    """

    def __init__(self, bus: ToolBus, authenticator: Authenticator) -> None:
        self.bus = bus
        self.settings = bus.settings
        self.authenticator = authenticator

    async def admitted(self, connection: HTTPConnection, permission: Permission = "call") -> Principal:
        """Return who sent a request, if they have a permission.

        Raises:
            Problem: 401, 403 or 429.
        """
        principal = await self.authenticator.principal(connection)
        if permission not in principal.may:
            raise Problem(403, "forbidden", f"{principal.name} has no permission to {permission}")
        return principal


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the gateway that a request came to."""
    found: Gateway = connection.app.state.gateway
    return found
