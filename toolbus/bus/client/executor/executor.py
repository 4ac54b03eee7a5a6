"""``ToolExecutor``: runs the calls that a model asks for, and answers in the model's own shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.bus.client.executor.context import ExecutorContext
from toolbus.bus.client.executor.toolcalls import ModelCall, Place, answers, tool_calls
from toolbus.bus.client.executor.turn import Turn
from toolbus.bus.client.refusing import turning
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError, ToolResult


class ToolExecutor(ExecutorContext):
    """Runs a model's tool calls on a bus; ``bus.executor(…)`` makes one.

    Every failure, also one of the model's own making, becomes an observation that tells the model what to do next, never an exception.
    """

    @turning
    async def process_tool_calls(self, message: object, *, concurrent: bool = True) -> list[dict[str, Any]]:
        """Run a turn's calls and return the messages that answer them, in order, ready to be added to the conversation.

        None is affected by another's failure. A call that refers to an earlier one by ``{"$from": …}`` waits for it.

        Args:
            message: a message or response of OpenAI's chat completions or responses, or of Anthropic's messages, or a list of
                calls; see ``tool_calls``.
            concurrent: run the calls together instead of one after another.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind, an option is wrong, or the bus is not open.
        """
        return await self.turn(message, concurrent=concurrent).messages()

    def stream_tool_calls(self, message: object, *, concurrent: bool = True) -> Turn:
        """Return a turn for ``async with`` and ``async for``: each event as it happens, and then ``messages()``.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind.
        """
        return self.turn(message, concurrent=concurrent, streaming=True)

    def turn(
        self,
        message: object,
        *,
        concurrent: bool = True,
        streaming: bool = False,
        places: Sequence[Place] = (),
        known: Mapping[str, ToolResult] | None = None,
    ) -> Turn:
        """Return a turn's calls for ``async with``, with their messages and results.

        Calls of sequential tools take their places in the order of the service when the turn is entered, before anything waits. A
        framework that runs each call of a turn by itself keeps the order as long as it enters their turns in order, on one executor. One
        that does not (it uses threads, or waits in between) takes the places for all of them first: see ``reserve``.

        Args:
            message: see ``process_tool_calls``.
            concurrent: run the calls together instead of one after another.
            streaming: the turn's events are read, too.
            places: what ``reserve`` returned for these calls; the turn leaves them.
            known: results of calls, by their ids, that are not run again.

        Raises:
            ConfigurationError: ``message`` is nothing of the kind, or there are not as many places as calls.
        """
        return Turn(self, tool_calls(message), concurrent=concurrent, streaming=streaming, places=places, known=known)

    def answered(self, calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """Return the messages that a turn with these calls and results ends with, without running anything."""
        tools = [self.find(call.name) for call in calls]
        return answers(calls, self.observed([*zip(results, tools, strict=True)]))

    def reserve(self, names: Sequence[str]) -> list[Place]:
        """Take the places of calls that are made later, each in a turn of its own: ``turn([call], places=[place])``.

        Call it in the event loop of the bus, once for all calls of a model's turn. A place whose turn is never entered must be left
        (``place.leave()``), or the calls of its service wait for it forever.

        Args:
            names: of the tools, in the model's order and spelling.
        """
        return [self.place(self.find(name)) for name in names]

    @turning
    async def execute(self, name: str, arguments: object = None) -> ToolResult:
        """Run one call as a model's: repaired, cast, validated, confirmed, observed and logged."""
        (result,) = await Turn(self, [ModelCall(new_id(), name, arguments)]).results()
        return result

    def build_request(self, messages: list[Any], **parameters: Any) -> dict[str, Any]:
        """Return the body of a chat completion: ``{model, messages, tools, tool_choice: "auto"}`` and ``parameters``.

        Without tools it mentions none, since an empty list is refused.

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
