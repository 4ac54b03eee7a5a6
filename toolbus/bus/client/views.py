"""Views of a bus: with default options, and of one service's untyped lower tier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from toolbus.bus.broker.protocols import Usage
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.confirmations import Confirmer, PendingConfirmations
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT, EventBus
from toolbus.bus.client.executor.state import BusState
from toolbus.bus.client.refusing import raised, turning
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.options import CallOptions, ServiceCallOptions, mapping, merged, session_id, text
from toolbus.bus.values.results import ConfigurationError, ToolResult

if TYPE_CHECKING:
    from toolbus.bus.client.executor.executor import ToolExecutor
    from toolbus.bus.client.executor.turn import Turn


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
        from toolbus.bus.client.executor.context import RULES  # noqa: PLC0415
        from toolbus.bus.client.executor.executor import ToolExecutor  # noqa: PLC0415

        return ToolExecutor(
            self._state,
            tools=tools,
            options=merged(self._defaults, options, RULES),
            output_limit=output_limit,
            attachment_limit=attachment_limit,
            confirmer=confirmer,
            confirm_timeout=confirm_timeout,
            confirm_anywhere=confirm_anywhere,
            sequential=sequential,
            model=model,
        )

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
