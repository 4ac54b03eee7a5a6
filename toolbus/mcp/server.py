"""``BusServer``: the MCP server over a bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from mcp.server.connection import Connection
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp_types import NotificationParams, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbus.client.bus import ToolBus
from toolbus.mcp.caller import CallerOf, Context
from toolbus.mcp.calls import ToolCalls
from toolbus.mcp.client import TASKS
from toolbus.mcp.listing import ListChanges, ListWatch, Subscriptions, page_of
from toolbus.mcp.tasks import TaskMethods, TaskParams, UpdateParams

_SESSION = "toolbus.session"


class BusServer(Server[None]):
    """The tools of a bus, for clients of every revision.

    Args:
        bus: open while the server runs.
        caller_of: returns who sent a request.

    Attributes:
        calls: answers calls of tools.
    """

    def __init__(self, bus: ToolBus, caller_of: CallerOf) -> None:
        self._bus = bus
        self._caller_of = caller_of
        self._changes = ListChanges(bus)
        self._group: asyncio.TaskGroup | None = None
        self.calls = ToolCalls(bus, caller_of)
        tasks = TaskMethods(bus, caller_of)
        self._subscriptions = Subscriptions(bus, caller_of, self._changes, tasks)
        super().__init__(
            "toolbus",
            version=version("toolbus"),
            lifespan=self._running,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list,
            on_call_tool=self.calls.call,  # type: ignore[arg-type] # results are JSON already
            on_subscriptions_listen=self._subscriptions.listen,  # type: ignore[arg-type]
        )
        self.extensions[TASKS] = {}
        self.add_request_handler("tasks/get", TaskParams, tasks.get)
        self.add_request_handler("tasks/update", UpdateParams, tasks.update)
        self.add_request_handler("tasks/cancel", TaskParams, tasks.cancel)
        self.add_notification_handler("notifications/initialized", NotificationParams, self._initialized)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what clients of the revisions with a handshake are told."""
        options = notification_options or NotificationOptions(tools_changed=True)
        # Tasks are of a later revision than these.
        return super().create_initialization_options(options, experimental_capabilities, extensions or {})

    def close_streams(self) -> None:
        """End the subscriptions in order, before the process stops."""
        self._subscriptions.close()

    @asynccontextmanager
    async def _running(self, server: Server[None]) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            self._group = group
            following = group.create_task(self._changes.run())
            try:
                yield
            finally:
                self._group = None
                self.close_streams()
                following.cancel()

    async def _list(self, context: Context, params: PaginatedRequestParams | None) -> Any:
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        return page_of(self._caller_of(context).sees(self._bus), None if params is None else params.cursor, modern=modern)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the schema that says which arguments a request's headers repeat."""
        tool = self._bus.tools.by_wire_name(name)
        return None if tool is None else tool.parameters

    # -- clients with a handshake -----------------------------------------------------------------

    async def _initialized(self, context: Context, params: NotificationParams) -> None:
        """Tell a client that is connected of changes from now on."""
        # The SDK has no other way to what outlives a request.
        connection = context.session._connection
        if self._group is None or _SESSION in connection.state:
            return
        watch = self._changes.watch(self._caller_of(context).sees(self._bus))
        connection.state[_SESSION] = telling = self._group.create_task(self._tell(watch, connection))
        connection.exit_stack.callback(self._changes.stop, watch)
        connection.exit_stack.callback(telling.cancel)

    async def _tell(self, watch: ListWatch, connection: Connection) -> None:
        while True:
            await watch.changed.wait()
            watch.changed.clear()
            await connection.notify("notifications/tools/list_changed", None)
