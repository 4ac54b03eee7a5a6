"""``ToolBus``: the caller's side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolbus.bus.broker.protocols import ItemChange, RefusedTool, ServiceRecord
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.calls.middleware import MiddlewareRunner
from toolbus.bus.client.executor.state import BusState
from toolbus.bus.client.refusing import turning
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.views import BusView
from toolbus.bus.middleware.chain import Middleware, checked
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings

if TYPE_CHECKING:
    from toolbus.bus.broker.held.confirmations import Confirmations
    from toolbus.bus.broker.held.conversations import Chats
    from toolbus.bus.broker.held.creations import Creations
    from toolbus.bus.broker.held.limits import Tallies
    from toolbus.bus.broker.held.mcp import McpSessions
    from toolbus.bus.broker.held.routes import Routes
    from toolbus.bus.broker.held.tokens import Tokens
    from toolbus.bus.client.tasks import Tasks


class ToolBus(BusView):
    """Finds the tools of a namespace and calls them.

    Use ``async with``, or ``open()`` and ``aclose()``, which may run in different tasks of one event loop.

    Args:
        url: as in ``Settings``; ``memory://`` is the embedded server, for this process alone.
        namespace: as in ``Settings``.
        settings: everything else.
        middleware: runs around every call, the first one outermost; see ``toolbus.bus.middleware``.

    Raises:
        ConfigurationError: a setting or the URL is wrong.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.settings = Settings.load(base=settings, url=url, namespace=namespace)
        self._lock = asyncio.Lock()
        self._dispatcher = Dispatcher(self.settings)
        self._middleware = MiddlewareRunner(self._dispatcher, checked(middleware)) if middleware else None
        # A bus without middleware calls the dispatcher directly.
        make_call = self._dispatcher.make_call if self._middleware is None else self._middleware.make_call
        super().__init__(BusState(self._dispatcher, make_call), {})

    def for_handlers(self) -> Self:
        """Make this the bus for calls of handlers, which keep no order in their session; returns the bus."""
        self._dispatcher.nested = True
        return self

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    @turning
    async def open(self) -> None:
        """Connect and load the registry's snapshot; opening an open bus does nothing.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        async with self._lock:
            if self._dispatcher.is_open:
                self._dispatcher.check()
            else:
                await self._dispatcher.open()

    @turning
    async def aclose(self) -> None:
        """End every running call as cancelled, leave the sessions, and disconnect; closing a closed bus does nothing.

        A session that no other bus uses ends with it.
        """
        async with self._lock:
            if not self._dispatcher.is_open:
                return
            self._dispatcher.check()
            if self._middleware is not None:
                await self._middleware.aclose()
            await self._dispatcher.aclose()

    @turning
    async def end_session(self, user: str, session: str) -> None:
        """End a session of any view: cancel this bus's calls in it, and tell every service that it called in it."""
        await self._state.end_session(user, session)

    # -- tools ------------------------------------------------------------------------------------

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        """The services in the registry, by id."""
        return self._dispatcher.catalogue.services

    @property
    def refused(self) -> list[RefusedTool]:
        """The tools whose descriptors can't be used, with the reason; their siblings can."""
        return self._dispatcher.catalogue.refused()

    def near(self, name: str, user: str | None = None) -> list[str]:
        """Return names of tools that look like a wrong one: of those that a user may see, or of all for None."""
        return self._dispatcher.catalogue.near(name, user)

    @turning
    async def wait_for_tool(self, name: str, timeout: float = 10.0) -> Tool:
        """Wait until a tool can be called.

        Raises:
            TimeoutError: it could not within ``timeout`` seconds.
            ConfigurationError: the bus is not open, or was closed meanwhile.
        """
        connection = self._dispatcher.check()
        catalogue = connection.catalogue
        try:
            async with asyncio.timeout(timeout):
                await catalogue.wait(lambda: not connection.is_open or (name in catalogue.tools and catalogue.tools[name].available))
        except TimeoutError:
            raise TimeoutError(f"no live worker offered the tool {name!r} within {timeout:g} s") from None
        self._dispatcher.opened()
        return catalogue.tools[name]

    @turning
    async def put(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document (JSON).

        Args:
            key: ``tool/<name>`` or ``tool-service/<id>`` for a static descriptor, ``toolkit/<name>`` for a preset,
                ``group/<id>`` for a group of tools.
            document: the JSON.
            owner: the only one who may change it from now on.

        Raises:
            RegistrationRefused: a service publishes that name, or it belongs to another owner.
            ConfigurationError: the key has half of a surrogate pair, which UTF-8 can't express, or the document is over 4 MiB.
        """
        _check_key(key)
        await self._dispatcher.check().broker.put_item(key, document, owner)

    @turning
    async def delete(self, key: str, owner: str = "") -> bool:
        """Delete a document; return False when there was none.

        Raises:
            RegistrationRefused: it belongs to another owner than ``owner``, if one is given.
            ConfigurationError: see ``put``.
        """
        _check_key(key)
        return await self._dispatcher.check().broker.delete_item(key, owner)

    @turning
    async def replace(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed.

        None of the keys may be a name that services can hold, such as ``tool/<name>``.

        Raises:
            ConfigurationError: see ``put``.
        """
        for each in changes:
            _check_key(each.key)
        return await self._dispatcher.check().broker.replace_items(changes)

    # -- counts -----------------------------------------------------------------------------------

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        return self._dispatcher.opened().agent

    @property
    def tallies(self) -> Tallies:
        """The counters that all processes of the namespace share."""
        return self._state.steps.tallies

    @property
    def routes(self) -> Routes:
        """The places where recorded tools run, and what their programs print."""
        return self._state.steps.routes

    @property
    def tokens(self) -> Tokens:
        """The records of the namespace's bearer tokens, for gateways."""
        return self._state.steps.tokens

    @property
    def mcp_sessions(self) -> McpSessions:
        """The sessions of the namespace's MCP clients, for gateways."""
        return self._state.steps.mcp

    @property
    def creations(self) -> Creations:
        """The namespace's tasks of coding agents."""
        return self._state.steps.creations

    @property
    def chats(self) -> Chats:
        """The chats with the service agent."""
        return self._state.steps.chats

    @property
    def shared_confirmations(self) -> Confirmations:
        """The open requests of all processes of the namespace; use ``confirmations`` to answer them."""
        return self._state.steps.confirmations

    @property
    def tasks(self) -> Tasks:
        """The calls that outlive the process that began them."""
        from toolbus.bus.client.tasks import Tasks  # noqa: PLC0415 - few programs have tasks

        return Tasks(self._state)

    def statistics(self) -> dict[str, int]:
        """Return counts: calls in flight, frames that came before earlier ones of their runs, tools known, and the broker's own."""
        dispatcher = self._dispatcher
        connection = dispatcher.opened()
        own = {"in_flight": dispatcher.in_flight, "early_frames": dispatcher.early_frames, "tools": len(connection.catalogue.tools)}
        return own | connection.broker.statistics()


def _check_key(key: str) -> None:
    if whole_text(key) != key:
        raise ConfigurationError(f"{key!a} can't be a key: it has half of a surrogate pair")
