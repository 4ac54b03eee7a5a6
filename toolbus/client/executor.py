"""``ToolExecutor``: runs the calls that a model asks for, and answers in the model's own shape."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from toolbus.client.arguments import Preparers
from toolbus.client.confirmation import Confirmations, Confirmer
from toolbus.client.observations import LIMIT
from toolbus.client.observers import EventBus
from toolbus.client.references import Memories
from toolbus.client.tool import Tool
from toolbus.client.toolcalls import ToolCall, tool_calls
from toolbus.client.toolview import ToolView
from toolbus.client.turn import Turn
from toolbus.confirmations import PATIENCE
from toolbus.envelope import new_id
from toolbus.options import seconds
from toolbus.results import ConfigurationError, ErrorInfo, ToolResult

if TYPE_CHECKING:
    from toolbus.client.bus import ToolBus
    from toolbus.client.call import Call
    from toolbus.client.grant import Grant


class ExecutorState:
    """What the executors of one bus share: earlier results, prepared schemas, observers, and calls that wait for a person."""

    def __init__(self, confirmations: Confirmations) -> None:
        self.memories = Memories()
        self.preparers = Preparers()
        self.events = EventBus()
        self.confirmations = confirmations


class ToolExecutor:
    """Runs a model's tool calls on a bus; ``bus.executor(…)`` makes one.

    Whatever a model says ends as an observation that tells it what to do next, never as an exception.

    Attributes:
        tools: the tools that may be called; others do not exist for the model.
        output_limit: most characters of an observation, for tools that set no limit of their own.
        confirmer: asks a person about tools that declare ``confirm``.
        confirm_anywhere: whether any process of the namespace may answer: unless told otherwise, when there is no confirmer.
        confirm_timeout: seconds that such a call waits for an answer, beside its own time.
        model: the default of ``build_request``.
    """

    def __init__(
        self,
        bus: ToolBus,
        state: ExecutorState,
        *,
        tools: ToolView | None = None,
        options: Mapping[str, Any] | None = None,
        output_limit: int = LIMIT,
        confirmer: Confirmer | None = None,
        confirm_timeout: float = PATIENCE,
        confirm_anywhere: bool | None = None,
        sequential: Collection[str] = (),
        model: str = "",
    ) -> None:
        if output_limit < 1:
            raise ConfigurationError(f"output_limit must be at least 1, not {output_limit!r}")
        self._bus = bus
        self._tools = tools
        self._seen: tuple[ToolView, ToolView] | None = None
        self._options = options or {}
        self._sequential = frozenset(sequential)
        self.output_limit = output_limit
        self.confirmer = confirmer
        self.confirm_timeout = seconds(confirm_timeout, "confirm_timeout")
        self.confirm_anywhere = confirmer is None if confirm_anywhere is None else confirm_anywhere
        self.model = model
        self.memories = state.memories
        self.preparers = state.preparers
        self.events = state.events
        self.confirmations = state.confirmations
        self.user: str = self._options.get("user", "")
        self.session: str = self._options.get("session", "")
        self.waits = bool(self._options.get("wait")) and tools is None

    @property
    def tools(self) -> ToolView:
        """The tools that may be called."""
        given = self._bus.tools if self._tools is None else self._tools
        if self._seen is None or self._seen[0] is not given:
            self._seen = (given, given.filter(user=self.user))
        return self._seen[1]

    async def process_tool_calls(self, message: object, *, concurrent: bool = True) -> list[dict[str, Any]]:
        """Run a turn's calls and return the messages that answer them, in order, ready to be added to the conversation.

        ``message`` is a message or response of OpenAI's chat completions or responses, or of Anthropic's messages, or a list of
        calls; see ``tool_calls``. Calls run together unless ``concurrent`` is False, and none is affected by another's failure.
        One that refers to an earlier one by ``{"$from": …}`` waits for it.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind, an option is wrong, or the bus is not open.
        """
        async with self.turn(message, concurrent=concurrent) as turn:
            return await turn.messages()

    def stream_tool_calls(self, message: object, *, concurrent: bool = True) -> Turn:
        """The same, for ``async with`` and ``async for``: what happens to each call as it happens, and then ``messages()``.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind.
        """
        return self.turn(message, concurrent=concurrent, streaming=True)

    def turn(self, message: object, *, concurrent: bool = True, streaming: bool = False) -> Turn:
        """A turn's calls as an ``async with`` of which the messages and the results may be had; ``streaming`` when its events are read.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind.
        """
        return Turn(self, tool_calls(message), concurrent=concurrent, streaming=streaming)

    async def execute(self, name: str, arguments: object = None) -> ToolResult:
        """Run one call as a model's would be, and return its result: repaired, cast, validated, confirmed, observed and logged."""
        async with self.turn([ToolCall(new_id(), name, arguments)]) as turn:
            return (await turn.results())[0]

    def build_request(self, messages: list[Any], **parameters: Any) -> dict[str, Any]:
        """The body of a chat completion: ``{model, messages, tools, tool_choice: "auto"}`` and ``parameters``.

        Without tools there is no word of them: an empty list is refused.

        Raises:
            ConfigurationError: neither the executor nor ``parameters`` name a model.
        """
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        tools = self.tools.definitions("openai")
        if tools:
            body |= {"tools": tools, "tool_choice": "auto"}
        body |= parameters
        if not body["model"]:
            raise ConfigurationError("which model? pass build_request(messages, model=…) or bus.executor(model=…)")
        return body

    # -- for turns --------------------------------------------------------------------------------

    def narrowed(self, tools: ToolView) -> ToolExecutor:
        """The same executor for other tools, with the same observers and earlier results."""
        made = copy.copy(self)
        made._tools, made._seen, made.waits = tools, None, False
        return made

    def find(self, name: str) -> Tool | None:
        """The tool that a model means, if it may call it."""
        return self.tools.by_wire_name(name) if name else None

    def is_sequential(self, tool: Tool | None) -> bool:
        """Whether a tool's calls wait for those before them, and those after them for it."""
        return tool is not None and (tool.name in self._sequential or tool.descriptor.extensions.get("sequential") is True)

    def stream(self, grant: Grant, arguments: Mapping[str, Any], call: str, patience: float) -> Call:
        """One call on the bus, of what was granted alone; an idempotency key of the turn becomes one of the call.

        Args:
            patience: seconds that it waits for a worker, or 0.
        """
        options: dict[str, Any] = {**self._options}
        if "wait" in options:
            options["wait"] = patience or False
        if key := options.get("idempotency_key"):
            options["idempotency_key"] = f"{key}/{call}"
        made = self._bus.stream(grant.tool.name, arguments, **options)
        made.grant = grant
        return made

    def patience(self) -> float:
        """Seconds that a call waits for a worker to appear.

        Raises:
            ConfigurationError: the option is wrong.
        """
        return self._bus.patience(self._options)

    async def until_callable(self, name: str, patience: float) -> ErrorInfo | None:
        """Wait until the tool that a model means can be called, at most so many seconds; an error when it will not be."""
        return await self._bus.until_callable(lambda: self.find(name), self._options, patience)

    @property
    def most_arguments(self) -> int:
        """Most bytes of a call's arguments."""
        return self._bus.settings.max_request
