"""Tell what the client of a request can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.client.views import BusView

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


TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the tasks extension."""


class Client(msgspec.Struct, frozen=True):
    """The abilities of the client of a request.

    Attributes:
        modern: it is of revision 2026-07-28 or later.
        elicits: it can ask its user.
        tasks: it takes tasks in place of results.
        progress: it wants to hear of progress.
    """

    modern: bool
    elicits: bool
    tasks: bool
    progress: bool

    @classmethod
    def of(cls, context: Context) -> Client:
        """Return what the client of this request can do."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        meta: Mapping[str, Any] = context.meta or {}
        progress = (context.params or {}).get("_meta", {}).get("progressToken") is not None
        if modern:
            capabilities = meta.get(CLIENT_CAPABILITIES_META_KEY) or {}
            elicitation = _part(capabilities, "elicitation")
            extensions = _part(capabilities, "extensions")
            return cls(True, _asks_in_forms(elicitation), _part(extensions, TASKS) is not None, progress)
        known = context.session.client_capabilities
        asks = known is not None and known.elicitation is not None and context.session.can_send_request
        return cls(False, asks, False, progress)

    def must_have_tasks(self, method: str) -> None:
        """Refuse a request that only clients with the tasks extension may send.

        Raises:
            MCPError: the client has not said that it has it.
        """
        if not self.modern:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        if not self.tasks:
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"{method} needs a client with the tasks extension", needed)


def _part(value: object, name: str) -> Mapping[str, Any] | None:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _asks_in_forms(elicitation: Mapping[str, Any] | None) -> bool:
    # Without a mode it is forms, as before there were others.
    return elicitation is not None and (not elicitation or "form" in elicitation)
