"""``ToolBus``, the caller's side, and views of it: with default options, and of one service's untyped lower tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from toolbus.bus.broker.protocols import ItemChange, RefusedTool, ServiceRecord, Usage
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.calls.middleware import MiddlewareRunner
from toolbus.bus.client.confirmations import Confirmer, PendingConfirmations
from toolbus.bus.client.executor.context import RULES, BusState, ExecutorOptions
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT, EventBus
from toolbus.bus.client.refusing import raised, turning
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.middleware import Middleware, checked
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.options import CallOptions, ServiceCallOptions, mapping, merged, session_id, text
from toolbus.bus.values.results import ConfigurationError, ToolResult
from toolbus.bus.values.settings import Settings

if TYPE_CHECKING:
    from toolbus.bus.broker.held.confirmations import Confirmations
    from toolbus.bus.broker.held.conversations import Chats
    from toolbus.bus.broker.held.creations import Creations
    from toolbus.bus.broker.held.limits import Tallies
    from toolbus.bus.broker.held.mcp import McpSessions
    from toolbus.bus.broker.held.routes import Routes
    from toolbus.bus.broker.held.tokens import Tokens
    from toolbus.bus.client.executor.executor import ToolExecutor
    from toolbus.bus.client.executor.turn import Turn
    from toolbus.bus.client.tasks import Tasks


class BusView:
    """Calls tools of a bus with default options: what ``bind`` returns. A bus is one itself, without any."""

    def __init__(self, state: BusState, defaults: Mapping[str, Any]) -> None:
        self._state = state
        self._defaults = defaults

    @property
    def tools(self) -> ToolView:
        """The live tools of the namespace, by name; those that the bound user may call, if there is one.

        Raises:
            ConfigurationError: the bus is not open.
        """
        user = self._defaults.get("user")
        return self._state.tools if user is None else self._state.tools.filter(user=user)

    def bind(self, **options: Unpack[CallOptions]) -> BusView:
        """Return a cheap view with these options as defaults, on top of this one's.

        Raises:
            ConfigurationError: an option does not exist.
        """
        return BusView(self._state, merged(self._defaults, options))

    def session(self, id: str, **options: Unpack[CallOptions]) -> AbstractAsyncContextManager[BusView]:
        """Return a view bound to a session, for ``async with``, which closes the session.

        Raises:
            ConfigurationError: the id is no text, or is empty, or an option is wrong.
        """
        options["session"] = session_id(id)
        return _closing(self.bind(**options))

    @turning
    async def close_session(self) -> None:
        """End the bound session: this bus's calls in it are cancelled, and every service that it called in it hears of the end.

        A session that is used again afterwards starts anew.

        Raises:
            ConfigurationError: no session is bound.
        """
        session = self._defaults.get("session")
        if not session:
            raise ConfigurationError("no session is bound here: use bus.bind(session=…), or `async with bus.session(…)`")
        await self._state.end_session(self._defaults.get("user", ""), session)

    @turning
    async def usage(self, days: int = 1) -> list[Usage]:
        """Return what calls cost on the last days (UTC), by user and tool, where ``Metering`` counts them.

        Raises:
            BrokerError: the server can't be reached.
        """
        return await self._state.steps.tallies.usage(days)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result. A failure of the tool is a value, not an exception.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """
        try:
            chosen = merged(self._defaults, options) if options else self._defaults
            call = self._state.make_call(CallTarget(tool), arguments, chosen, streaming=False)
        except ConfigurationError as error:
            await raised(error)
        return await call.result()

    def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Call:
        """Return a call to be entered with ``async with`` and read as its answer is produced.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """
        return self._state.make_call(CallTarget(tool), arguments, merged(self._defaults, options), streaming=True)

    @property
    def events(self) -> EventBus:
        """Tells observers of every call that executors make on this bus."""
        return self._state.events

    @property
    def confirmations(self) -> PendingConfirmations:
        """The open confirmations: this bus's own by id, and methods to answer those of every process."""
        return self._state.confirmations

    def executor(
        self,
        *,
        tools: ToolView | None = None,
        output_limit: int = LIMIT,
        attachment_limit: int = ATTACHMENTS,
        confirmer: Confirmer | None = None,
        confirm_timeout: float = CONFIRM_TIMEOUT,
        confirm_anywhere: bool | None = None,
        sequential: Collection[str] = (),
        model: str = "",
        **options: Unpack[CallOptions],
    ) -> ToolExecutor:
        """Return an executor of a model's tool calls, with these options for each of them.

        Args:
            tools: the tools that may be called (``bus.tools.filter(…)``); all when left out.
            output_limit: most characters of an observation, for tools that set no limit of their own.
            attachment_limit: most bytes of images and files that a model is shown of one turn; 0 for none.
            confirmer: asks a person about tools that declare ``confirm``.
            confirm_timeout: seconds that a call waits for the person.
            confirm_anywhere: whether any process of the namespace may answer; left out, when there is no confirmer.
            sequential: names of tools whose calls wait for the calls before them in their turn, and are waited for by those after them.
            model: the model of ``build_request``.

        Raises:
            ConfigurationError: an option is wrong.
        """
        # Agents without a model make none.
        from toolbus.bus.client.executor.executor import ToolExecutor  # noqa: PLC0415

        own = ExecutorOptions(tools, output_limit, attachment_limit, confirmer, confirm_timeout, confirm_anywhere, sequential, model)
        return ToolExecutor(self._state, own, merged(self._defaults, options, RULES))

    @turning
    async def process_tool_calls(self, message: object, *, concurrent: bool = True, **options: Unpack[CallOptions]) -> list[dict[str, Any]]:
        """Run a turn's tool calls and return the messages that answer them, see ``ToolExecutor.process_tool_calls``."""
        return await self.executor(**options).process_tool_calls(message, concurrent=concurrent)

    def stream_tool_calls(self, message: object, *, concurrent: bool = True, **options: Unpack[CallOptions]) -> Turn:
        """Run a turn's tool calls and read what happens to them, see ``ToolExecutor.stream_tool_calls``."""
        return self.executor(**options).stream_tool_calls(message, concurrent=concurrent)

    def service(self, id: str) -> ServiceView:
        """Return the untyped lower tier of one service.

        Raises:
            ConfigurationError: the id is no text.
        """
        return ServiceView(self._state, text(id, "the id of a service"), self._defaults)


@asynccontextmanager
async def _closing(view: BusView) -> AsyncIterator[BusView]:
    """Close the session of a view at the end of the ``async with``."""
    try:
        yield view
    finally:
        await view.close_session()


class ServiceView:
    """The untyped lower tier: calls a service's ``invoke`` with config and arguments as given."""

    def __init__(self, state: BusState, id: str, defaults: Mapping[str, Any]) -> None:
        self._state = state
        self._id = id
        self._defaults = defaults

    async def call(
        self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]
    ) -> ToolResult:
        """Call the service; ``str()`` of the result is the observation."""
        try:
            call = self._make(user, config, arguments, options, streaming=False)
        except ConfigurationError as error:
            await raised(error)
        return await call.result()

    def stream(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]) -> Call:
        """Call the service and read its answer as it is produced."""
        return self._make(user, config, arguments, options, streaming=True)

    def _make(
        self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], options: Mapping[str, Any], *, streaming: bool
    ) -> Call:
        chosen = merged(self._defaults, {**options, "user": user})
        return self._state.make_call(CallTarget("", self._id, mapping(config, "config")), arguments, chosen, streaming=streaming)


class ToolBus(BusView):
    """Finds the tools of a namespace and calls them.

    Use ``async with``, or ``open()`` and ``aclose()``, which may run in different tasks of one event loop.

    Args:
        url: as in ``Settings``; ``memory://`` is the embedded server, for this process alone.
        namespace: as in ``Settings``.
        settings: everything else.
        middleware: runs around every call, the first one outermost; see ``toolbus.middleware``.

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
            try:
                if self._middleware is not None:
                    await self._middleware.aclose()
            finally:
                await self._dispatcher.aclose()

    @turning
    async def end_session(self, user: str, session: str) -> None:
        """End a session of any view: cancel this bus's calls in it, and tell every service that it called in it."""
        await self._state.end_session(user, session)

    # -- tools ------------------------------------------------------------------------------------

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        """The services in the registry, by id."""
        return self._dispatcher.connection.catalogue.services

    @property
    def refused(self) -> list[RefusedTool]:
        """The tools whose descriptors can't be used, with the reason; their siblings can."""
        return self._dispatcher.connection.catalogue.refused()

    def near(self, name: str, user: str | None = None) -> list[str]:
        """Return names of tools that look like a wrong one: of those that a user may see, or of all for None."""
        return self._dispatcher.connection.catalogue.near(name, user)

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
