"""Describe who sends MCP requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec
from mcp.server.context import ServerRequestContext

from toolbus.client.bus import ToolBus
from toolbus.client.tools.view import ToolView
from toolbus.client.views import BusView

SCOPE_KEY = "toolbus.caller"
"""The key of the caller in an HTTP request's ASGI scope."""

Context = ServerRequestContext[Any, Any]


class Caller(Protocol):
    """The sender of a request, as authenticated; the gateway's ``Principal`` is one."""

    @property
    def name(self) -> str:
        """The name for logs, and for people who ask who answered."""

    @property
    def user(self) -> str:
        """The bus's user."""

    def view(self, bus: ToolBus) -> BusView:
        """Return the bus as this caller's user."""

    def sees(self, bus: ToolBus) -> ToolView:
        """Return the tools that this caller may see and call."""


class LocalCaller(msgspec.Struct, frozen=True):
    """The one caller of a server on stdio: who started the process.

    Attributes:
        user: the bus's user.
        groups, tools: the tools that are served; None for all.
    """

    name: str = "stdio"
    user: str = ""
    groups: frozenset[str] | None = None
    tools: frozenset[str] | None = None

    def view(self, bus: ToolBus) -> BusView:
        """Return the bus as this caller's user."""
        return bus.bind(user=self.user)

    def sees(self, bus: ToolBus) -> ToolView:
        """Return the tools that this caller may see and call."""
        return bus.tools.filter(user=self.user, groups=self.groups, names=self.tools)


CallerOf = Callable[[Context], Caller]
"""Returns who sent the request of a context."""


def caller_of_request(context: Context) -> Caller:
    """Return who sent an HTTP request, as the gateway found out."""
    request: Any = context.request
    return cast("Caller", request.scope[SCOPE_KEY])
