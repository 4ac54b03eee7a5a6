"""``BusState``: what a bus, its views and its executors share; ``ExecutorContext``: what the turns of one executor share."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from weakref import WeakValueDictionary

from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.confirmations import Confirmer, Grant, PendingConfirmations
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT, EventBus, observe
from toolbus.bus.client.executor.references import Memories
from toolbus.bus.client.executor.toolcalls import CallOrder, Manner, Observation, Place, shown
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values import rules
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.results import ErrorInfo, ToolResult

if TYPE_CHECKING:
    from toolbus.bus.broker.agent import AgentSteps


class MakeCall(Protocol):
    """Make a call that has not been published yet, within the bus's middleware if it has any."""

    def __call__(self, target: CallTarget, arguments: Any, options: Mapping[str, Any], *, streaming: bool) -> Call:
        """Return the call.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """


class BusState:
    """The dispatcher of a bus, beside the earlier results, observers and confirmations of its executors."""

    def __init__(self, dispatcher: Dispatcher, make_call: MakeCall) -> None:
        self.dispatcher = dispatcher
        self.make_call = make_call
        self.memories = Memories()
        self.events = EventBus()
        self.confirmations = PendingConfirmations(lambda: self.steps.confirmations)
        # Those that an executor uses.
        self._orders: WeakValueDictionary[tuple[str, str], CallOrder] = WeakValueDictionary()

    @property
    def tools(self) -> ToolView:
        """The live tools of the namespace.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return self.dispatcher.opened().tools

    @property
    def steps(self) -> AgentSteps:
        """The steps of the bus's broker.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return self.dispatcher.opened().broker.steps

    def order(self, user: str, session: str) -> CallOrder:
        """Return the order of the calls in a session; without one, of a user's calls to services that have one state for all of them."""
        found = self._orders.get((user, session))
        if found is None:
            found = self._orders[user, session] = CallOrder()
        return found

    async def end_session(self, user: str, session: str) -> None:
        """End a session: cancel its calls, forget its results, and tell its services."""
        self.dispatcher.check()
        self.memories.forget(user, session)
        await self.dispatcher.end_session(user, session)


RULES: Mapping[str, rules.Rule] = {
    "tools": rules.or_none(rules.Rule("a view of tools (bus.tools.filter(…))", lambda value: isinstance(value, ToolView))),
    "output_limit": rules.whole("a number of characters above 0", 1),
    "attachment_limit": rules.whole("a number of bytes, 0 or more"),
    "confirmer": rules.or_none(rules.FUNCTION),
    "confirm_timeout": rules.number("a finite number of seconds above 0", above=0, most=1e9),
    "confirm_anywhere": rules.or_none(rules.FLAG),
    "sequential": rules.TEXTS,
    "model": rules.TEXT,
}


class ExecutorOptions(NamedTuple):
    """The options of ``bus.executor(…)`` beside those of its calls."""

    tools: ToolView | None = None
    output_limit: int = LIMIT
    attachment_limit: int = ATTACHMENTS
    confirmer: Confirmer | None = None
    confirm_timeout: float = CONFIRM_TIMEOUT
    confirm_anywhere: bool | None = None
    sequential: Collection[str] = ()
    model: str = ""


_USUAL = ExecutorOptions()


class ExecutorContext:
    """The tools, options, observers and earlier results of an executor.

    Attributes:
        state: what the bus and its executors share.
        output_limit: most characters of an observation, for tools that set no limit of their own.
        attachment_limit: most bytes of images and files that a model is shown of one turn; 0 for none.
        confirmer: asks for the confirmation of tools that declare ``confirm``.
        confirm_anywhere: whether any process of the namespace may answer; by default only when there is no confirmer.
        confirm_timeout: seconds that such a call waits for an answer, beside its own time.
        model: the default of ``build_request``.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(self, state: BusState, own: ExecutorOptions, options: Mapping[str, Any]) -> None:
        if own != _USUAL:
            rules.check(own._asdict(), RULES, "the executor")
        self.state = state
        self._seen: tuple[ToolView, ToolView] | None = None
        self._options = options
        self._tools, self.output_limit, self.attachment_limit, self.confirmer, self.confirm_timeout, anywhere, sequential, self.model = own
        self._sequential = frozenset(rules.names(sequential))
        self.confirm_anywhere = self.confirmer is None if anywhere is None else anywhere
        self.memories = state.memories
        self.events = state.events
        self.confirmations = state.confirmations
        self.user: str = self._options.get("user", "")
        self.session: str = self._options.get("session", "")
        # Executors of one session have one order, also those that live for one turn.
        self._calls = state.order(self.user, self.session) if self.session else CallOrder()
        # A sticky service has one state for all calls of a user without a session.
        self._calls_of_user = self._calls if self.session or not self.user else state.order(self.user, "")
        self.waits = bool(self._options.get("wait")) and self._tools is None

    @property
    def tools(self) -> ToolView:
        """The tools that may be called; others do not exist for the model."""
        given = self.state.dispatcher.opened().tools if self._tools is None else self._tools
        if self._seen is None or self._seen[0] is not given:
            self._seen = (given, given.filter(user=self.user))
        return self._seen[1]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the bus, in which its calls are made.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return self.state.dispatcher.opened().loop

    def narrowed(self, tools: ToolView) -> Self:
        """Return the same executor for other tools, with the same observers and earlier results."""
        made = copy.copy(self)
        made._tools, made._seen, made.waits = tools, None, False
        return made

    @property
    def retention(self) -> float:
        """Seconds for which the answer of a call with an idempotency key can be found again, at least."""
        return self.state.dispatcher.settings.retention

    def keyed(self, idempotency_key: str) -> Self:
        """Return the same executor, whose calls carry this key with their ids."""
        made = copy.copy(self)
        made._options = {**self._options, "idempotency_key": idempotency_key}
        return made

    def find(self, name: str) -> Tool | None:
        """Return the tool that a model means, if it may call it."""
        return self.tools.by_wire_name(name) if name else None

    def observed(self, results: Sequence[tuple[ToolResult, Tool | None]]) -> list[Observation]:
        """Return what a model is told of the calls of one turn; each result comes with its tool, if there is one."""
        blobs = shown((result for result, _ in results), self.attachment_limit)
        return [
            Observation(observe(result, tool, limit=self.output_limit, shown=beside), result.success, beside)
            for (result, tool), beside in zip(results, blobs, strict=True)
        ]

    def is_sequential(self, tool: Tool | None) -> bool:
        """Return whether a tool's calls wait for the calls before them, and are waited for by those after them."""
        return tool is not None and (tool.descriptor.sequential is True or tool.name in self._sequential)

    def is_ordered(self, tool: Tool) -> bool:
        """Return whether it matters which of a tool's calls comes first."""
        return self._manner(tool) != "beside"

    def place(self, tool: Tool | None) -> Place:
        """Take the place of a call of a tool, in its order; None is a tool that does not exist."""
        if tool is None:
            return self._calls.place("", "beside")
        calls = self._calls_of_user if tool.resolution.sticky else self._calls
        return calls.place(tool.resolution.service, self._manner(tool))

    def _manner(self, tool: Tool) -> Manner:
        if self.is_sequential(tool):
            return "alone"
        if tool.resolution.ordered and (self.user or self.session):
            return "in turn"
        return "beside"

    def stream(self, grant: Grant, arguments: Mapping[str, Any], call: str, patience: float) -> Call:
        """Return one call on the bus, which may publish nothing but what was granted.

        Args:
            grant: the tool, and the permission if it needs one.
            arguments: the prepared arguments.
            call: the model's id of the call; it makes an idempotency key of the turn one of the call.
            patience: seconds that the call waits for a worker, or 0.
        """
        options = self._options
        if "wait" in options:
            options = {**options, "wait": patience or False}
            if options.get("timeout") is not None:
                # The wait until now was a part of it.
                waited = self.patience() - patience
                options["timeout"] = max(0.001, self.state.dispatcher.timeout(options, 0.0) - waited)
        if key := options.get("idempotency_key"):
            options = {**options, "idempotency_key": f"{key}/{call}"}
        made = self.state.make_call(CallTarget(grant.tool.name), arguments, options, streaming=True)
        made.grant = grant
        return made

    def patience(self) -> float:
        """Return the seconds that a call waits for a worker to appear.

        Raises:
            ConfigurationError: the option is wrong.
        """
        return self.state.dispatcher.patience(self._options)

    async def until_callable(self, name: str, patience: float) -> ErrorInfo | None:
        """Wait until the tool that a model means can be called, at most ``patience`` seconds; return an error when it will not be."""
        return await self.state.dispatcher.until_callable(lambda: self.find(name), self._options, patience)
