"""``Agent``: run a model and tools, turn by turn, until the model answers or a limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from toolbus.agent.endpoint import ChatEndpoint
from toolbus.agent.reply import Reply, valid_name
from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import ToolEvent
from toolbus.events import Finished
from toolbus.results import ConfigurationError, EndpointError

if TYPE_CHECKING:
    from toolbus.toolkit.walk import Walk

SYSTEM = (
    "Answer the user's question, with the tools that you are given where they help. Tools may come and go between turns. "
    "When a tool fails, do what its answer says; do not repeat a call that failed."
)

MAX_TURNS = 12
MAX_SECONDS = 300.0

_ATTEMPTS = 3
_LONGEST_PAUSE = 5.0


class ModelText(msgspec.Struct, frozen=True):
    """A piece of the model's text, as it arrives."""

    text: str


class Retrying(msgspec.Struct, frozen=True):
    """The endpoint failed temporarily; it is asked again after ``seconds``."""

    error: EndpointError
    seconds: float


AgentEvent = ModelText | Retrying | ToolEvent

Reason = Literal["answered", "length", "turns", "time"]


class Answer(msgspec.Struct, frozen=True):
    """The end of a question.

    Attributes:
        text: the model's last text.
        reason: ``answered``; ``length`` when the endpoint cut the answer off; ``turns`` or ``time`` when a limit was reached.
        turns: number of requests to the model.
        calls, failed: number of tool calls that ended, and of those that failed.
    """

    text: str
    reason: Reason
    turns: int
    calls: int
    failed: int


class Agent:
    """Asks a model, runs the tools it calls, and asks again.

    Each turn offers the tools that are available by then. In the last turn the model may call none, so that it has to answer.
    The next ``ask`` continues the conversation.

    Attributes:
        messages: the conversation.

    Args:
        executor: an executor made by ``bus.executor(model=…)``; its options apply to every call.
        max_turns: most requests to the model for one question.
        max_seconds: most seconds for one question, including models, tools and people.
        walk: the agent's position in a toolkit graph, which limits the tools of each turn and moves with the calls.
        parameters: fields that are added to each request (``temperature=0``).

    Raises:
        ConfigurationError: a limit is wrong, or the executor has no model.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        executor: ToolExecutor,
        *,
        system: str = SYSTEM,
        max_turns: int = MAX_TURNS,
        max_seconds: float = MAX_SECONDS,
        walk: Walk | None = None,
        **parameters: Any,
    ) -> None:
        if max_turns < 1 or not 0 < max_seconds < float("inf"):
            raise ConfigurationError("max_turns must be at least 1 and max_seconds a number of seconds above 0")
        if not executor.model:
            raise ConfigurationError("which model? pass bus.executor(model=…)")
        self._endpoint = endpoint
        self._executor = executor
        self._walk = walk
        self._max_turns = max_turns
        self._max_seconds = max_seconds
        self._parameters = parameters
        self._listener: Callable[[AgentEvent], object] = _ignore
        self._turns = self._calls = self._failed = 0
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    async def ask(self, question: str, listener: Callable[[AgentEvent], object] | None = None) -> Answer:
        """Return the model's answer. ``listener`` gets text and call events as they come; it must return quickly.

        Raises:
            EndpointError: the endpoint does not answer.
            ConfigurationError: an option of the executor is wrong, or the bus is not open.
        """
        self._listener = listener or _ignore
        self._turns = self._calls = self._failed = 0
        whole = len(self.messages)
        self.messages.append({"role": "user", "content": question})
        deadline = asyncio.timeout(self._max_seconds)
        try:
            async with deadline:
                while self._turns < self._max_turns:
                    self._turns += 1
                    reply = await self._complete()
                    called = bool(reply.calls())
                    if called and self._turns == self._max_turns:
                        break
                    self.messages.append(reply.message())
                    if called:
                        self.messages += await self._run(reply)
                    whole = len(self.messages)
                    if not called:
                        return self._answer(reply.text, "length" if reply.finish_reason == "length" else "answered")
        except TimeoutError:
            if not deadline.expired():
                raise
            return self._answer("", "time")
        finally:
            # Endpoints refuse a conversation that contains a call without an answer.
            del self.messages[whole:]
        return self._answer("", "turns")

    async def _complete(self) -> Reply:
        messages = self.messages
        if self._walk is not None:
            view = self._walk.view
            self._executor = self._executor.narrowed(view)
            messages = _with_instruction(messages, view.prompt())
        body = self._executor.build_request(messages, **self._parameters)
        if self._turns == self._max_turns and "tools" in body:
            body["tool_choice"] = "none"
        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._endpoint.complete(body, self._on_text)
            except EndpointError as error:
                pause = 0.5 * attempt if error.retry_after is None else error.retry_after
                if not error.retryable or pause > _LONGEST_PAUSE:
                    raise
                self._listener(Retrying(error, pause))
                await asyncio.sleep(pause)
        return await self._endpoint.complete(body, self._on_text)

    async def _run(self, reply: Reply) -> list[dict[str, Any]]:
        calls = reply.calls()
        async with self._executor.stream_tool_calls(calls) as turn:
            async for event in turn:
                if isinstance(event.event, Finished):
                    self._calls += 1
                    self._failed += not event.event.result.success
                self._listener(event)
            messages = [{**each, "name": valid_name(each["name"])} if "name" in each else each for each in await turn.messages()]
        if self._walk is not None:
            found = (self._executor.find(call.name) for call in calls)
            self._walk.after(tool.name for tool in found if tool is not None)
        return messages

    def _on_text(self, text: str) -> None:
        self._listener(ModelText(text))

    def _answer(self, text: str, reason: Reason) -> Answer:
        return Answer(text, reason, self._turns, self._calls, self._failed)


def _with_instruction(messages: list[dict[str, Any]], more: str) -> list[dict[str, Any]]:
    """Return the conversation with a further instruction at its start."""
    if not more:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": more}, *messages]
    return [{**messages[0], "content": f"{messages[0]['content']}\n\n{more}"}, *messages[1:]]


def _ignore(event: AgentEvent) -> None:
    """Ignore an event."""
