"""``Agent``: run a model and tools, turn by turn, until the model answers or a limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.agent.endpoint import ChatEndpoint
from toolbus.agent.history import (
    Answer,
    CallResult,
    End,
    Exchange,
    HeldConversation,
    History,
    KeptHistory,
    LocalHistory,
    Memory,
    ModelReply,
    ModelTurn,
    Question,
    TurnResults,
    name_to_hold,
    storable,
    with_instruction,
)
from toolbus.agent.reply import Reply, valid_name
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.events import Finished
from toolbus.bus.values.results import ConfigurationError, EndpointError, ErrorInfo, ToolResult

if TYPE_CHECKING:
    from toolbus.bus.broker.held.conversations import Conversations
    from toolbus.toolkit.live import Walk

SYSTEM = (
    "Answer the user's question, with the tools that you are given where they help. Tools may come and go between turns. "
    "When a tool fails, do what its answer says; do not repeat a call that failed."
)

MAX_TURNS = 12
MAX_SECONDS = 300.0

_FORGOTTEN = ErrorInfo(
    "outcome_unknown", "interrupted", "the call was interrupted, and too long ago to find its result; it may or may not have taken effect"
)

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

Listener = Callable[[AgentEvent], object]


class Agent:
    """Asks a model, runs the tools it calls, and asks again.

    Each turn offers the tools that are available by then. In the last turn the model may call none, so that it has to answer.
    The next ``ask`` continues the conversation. Questions that are asked at once are answered one after the other; a tool that asks the
    agent which calls it waits for itself.

    With ``conversation`` it is kept on the server, so that another process can continue it, also in the middle of a question: answers of
    the model that arrived are not asked for again, calls that ended are not run again, and one that still runs is joined. One process at a
    time continues a conversation.

    Attributes:
        messages: the conversation, as far as the model is told of it.

    Args:
        executor: an executor made by ``bus.executor(model=…)``; its options apply to every call.
        max_turns: most requests to the model for one question.
        max_seconds: most seconds for one question, including models, tools and people, and without the wait for earlier questions.
        conversations: where conversations are kept, when it is not the executor's own server.
        walk: the agent's position in a toolkit graph, which limits the tools of each turn and moves with the calls; with a recorder
            each question is recorded as an episode.
        conversation: the id under which the conversation is kept; each user of the executor has their own. None keeps nothing.
        memory: bounds what the model is told of a kept conversation; None is all that is kept.
        parameters: fields that are added to each request (``temperature=0``).

    Raises:
        ConfigurationError: a limit is wrong, the conversation's id is no name, or the executor has no model.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        executor: ToolExecutor,
        *,
        system: str = SYSTEM,
        max_turns: int = MAX_TURNS,
        max_seconds: float = MAX_SECONDS,
        conversations: Conversations | None = None,
        walk: Walk | None = None,
        conversation: str | None = None,
        memory: Memory | None = None,
        **parameters: Any,
    ) -> None:
        if max_turns < 1 or not 0 < max_seconds < float("inf"):
            raise ConfigurationError("max_turns must be at least 1 and max_seconds a number of seconds above 0")
        if not executor.model:
            raise ConfigurationError("which model? pass bus.executor(model=…)")
        self._endpoint = endpoint
        self._executor = executor
        self._conversations = conversations
        # With the tools of every position.
        self._everywhere = executor
        self._walk = walk
        self._max_turns = max_turns
        self._max_seconds = max_seconds
        # An id that is refused is refused here, before anything is asked.
        self._conversation = None if conversation is None else name_to_hold(executor.user, conversation).id
        if memory is not None and conversation is None:
            raise ConfigurationError("a memory needs a conversation that is kept: Agent(conversation=…, memory=…)")
        self._memory = memory
        self._parameters = parameters
        # Of a conversation that is not kept: each question continues what the one before it left.
        self._one_question = asyncio.Lock()
        self._remembers = False
        self._system: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self.messages = [*self._system]

    async def ask(self, question: str, listener: Listener | None = None, *, idempotency_key: str | None = None) -> Answer:
        """Return the model's answer. ``listener`` gets text and call events as they come; it must return quickly.

        In a kept conversation the same question goes on where it was left without an answer. With an ``idempotency_key`` of yours it is
        asked once, whenever and however often: when it was answered, that answer is returned. Another question gives up one that was
        left.

        Raises:
            EndpointError: the endpoint does not answer.
            ConversationError: the kept conversation can't be continued here; ``ConversationBusy`` when another process does.
            ConfigurationError: an option of the executor is wrong, the bus is not open, or the key is empty or of no kept conversation.
            BrokerError: a kept conversation can't be written.
        """
        if idempotency_key == "":
            raise ConfigurationError("an idempotency_key of a question needs at least one character; leave it out to have none")
        tell = listener or _ignore
        if self._conversation is not None:
            async with self._kept() as history:
                return await self._answered(history, Question(whole_text(question), idempotency_key or ""), tell)
        if idempotency_key:
            raise ConfigurationError("an idempotency_key of a question needs a conversation that is kept: Agent(conversation=…)")
        async with self._one_question:
            local = LocalHistory(self.messages)
            try:
                return await self._within_time(local, await local.begin(Question(question)), tell)
            finally:
                self.messages = local.end()

    async def resume(self, listener: Listener | None = None) -> Answer | None:
        """Continue the question that was left in a kept conversation, and return its answer; the latest answer when none was left.

        Returns:
            None when nothing was ever asked.

        Raises:
            ConfigurationError: the conversation is not kept.
            EndpointError: see ``ask``, also for other exceptions.
        """
        if self._conversation is None:
            raise ConfigurationError("only a conversation that is kept can be resumed: Agent(conversation=…)")
        async with self._kept() as history:
            return None if history.last is None else await self._continued(history, history.last, listener or _ignore)

    # -- one question -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[KeptHistory]:
        """Hold the kept conversation: no other process writes it meanwhile."""
        conversations = self._executor.state.steps.conversations if self._conversations is None else self._conversations
        async with HeldConversation(conversations, self._executor.user, self._conversation or "") as held:
            # The calls of a turn that was given up are answered as those of any other.
            history = KeptHistory(held, self._system, lambda calls, results: _named(self._everywhere.answered(calls, results)))
            self._recall(history)
            try:
                yield history
            finally:
                self.messages = history.messages

    async def _answered(self, history: KeptHistory, question: Question, tell: Listener) -> Answer:
        """Answer a question that may have been asked before."""
        known = history.found(question)
        if known is not None:
            return await self._continued(history, known, tell)
        if self._memory is not None:
            await self._memory.shorten(history, self._summed_up)
        return await self._within_time(history, await history.begin(question), tell)

    async def _summed_up(self, body: Mapping[str, Any]) -> Reply:
        """Ask the model for a summary; nobody is told of its text."""
        async with asyncio.timeout(0 if self._memory is None else self._memory.within):
            return await self._endpoint.complete({"model": self._executor.model, **self._parameters, **body})

    async def _continued(self, history: KeptHistory, exchange: Exchange, tell: Listener) -> Answer:
        """Return the answer of a question that was asked before, or go on with it."""
        if (answer := exchange.answer()) is not None:
            if answer.text:
                tell(ModelText(answer.text))
            return answer
        self._return_to(exchange)
        return await self._within_time(history, exchange, tell)

    async def _within_time(self, history: History, exchange: Exchange, tell: Listener) -> Answer:
        deadline = asyncio.timeout(self._max_seconds)
        try:
            with nullcontext() if self._walk is None else self._walk.recording(exchange.question.text):
                async with deadline:
                    return await self._follow(history, exchange, tell)
        except TimeoutError:
            if not deadline.expired():
                raise
            return exchange.given_up("time")

    async def _follow(self, history: History, exchange: Exchange, tell: Listener) -> Answer:
        """Take step after step until the question has an answer.

        Each is recorded before the next one, which depends on the records alone: any process can take it.
        """
        while (answer := exchange.answer()) is None:
            turn = exchange.unfinished()
            if turn is None:
                await history.add(await self._reply(history, len(exchange.turns) + 1, tell))
            else:
                await self._run(history, exchange, turn, tell)
        return answer

    async def _reply(self, history: History, number: int, tell: Listener) -> ModelReply | End:
        """Ask the model for its turn with this number."""
        if number > self._max_turns:
            return End("turns", number - 1)
        at = [] if self._walk is None else [*self._walk.at]
        reply = await self._complete(history.messages, tell, last=number == self._max_turns)
        calls = reply.calls()
        if calls and number == self._max_turns:
            return End("turns", number)
        return ModelReply(reply.message(), calls, reply.finish_reason, at)

    async def _complete(self, messages: list[dict[str, Any]], tell: Listener, *, last: bool) -> Reply:
        messages = with_instruction(messages, self._look())
        body = self._executor.build_request(messages, **self._parameters)
        if last and "tools" in body:
            body["tool_choice"] = "none"

        def on_text(text: str) -> None:
            tell(ModelText(text))

        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._endpoint.complete(body, on_text)
            except EndpointError as error:
                pause = 0.5 * attempt if error.retry_after is None else error.retry_after
                if not error.retryable or pause > _LONGEST_PAUSE:
                    raise
                tell(Retrying(error, pause))
                await asyncio.sleep(pause)
        return await self._endpoint.complete(body, on_text)

    async def _run(self, history: History, exchange: Exchange, turn: ModelTurn, tell: Listener) -> None:
        """Run the calls of a turn that have no result yet; each result is recorded as it comes."""
        key = history.turn_key(turn.number)
        executor = self._executor.keyed(key) if key else self._executor
        known = turn.results | (self._forgotten(history, turn) if key else {})
        found = {call: result for call, result in known.items() if call not in turn.results}
        left = {call.id for call in turn.reply.calls} - known.keys()
        async with executor.turn(turn.reply.calls, streaming=True, known=known) as running:
            async for event in running:
                if isinstance(event.event, Finished):
                    left.discard(event.id)
                    result = event.event.result
                    if key:
                        result = storable(result, executor.find(event.tool), limit=executor.output_limit)
                    if left:
                        await history.add(CallResult(event.id, result))
                    else:
                        found[event.id] = result
                tell(event)
                if exchange.end is not None:
                    return
            messages = await running.messages()
        await history.add(TurnResults(_named(messages), found))
        self._move(turn)

    # -- after another process --------------------------------------------------------------------

    def _forgotten(self, history: History, turn: ModelTurn) -> dict[str, ToolResult]:
        """Return the results of calls that must not run twice and whose answers are not kept any more by now."""
        if history.now - turn.at < self._executor.retention:
            return {}
        tools = {call.id: self._executor.find(call.name) for call in turn.pending()}
        return {call: ToolResult.fail(_FORGOTTEN) for call, tool in tools.items() if tool is not None and tool.descriptor.effect == "once"}

    def _recall(self, history: KeptHistory) -> None:
        """Let later calls refer to results of the session, which this process may not have seen."""
        if self._remembers:
            return
        self._remembers = True
        executor = self._everywhere
        for turn in history.turns():
            names = {call.id: call.name for call in turn.reply.calls}
            for call, result in turn.results.items():
                tool = executor.find(names[call])
                executor.memories.keep(executor.user, executor.session, call, names[call] if tool is None else tool.name, result)

    # -- walking ----------------------------------------------------------------------------------

    def _look(self) -> str:
        """Offer the tools of the current position only, and return the instruction for it."""
        if self._walk is None:
            return ""
        view = self._walk.view
        self._executor = self._executor.narrowed(view)
        return view.prompt()

    def _move(self, turn: ModelTurn) -> None:
        """Walk to where the calls of a turn lead."""
        if self._walk is not None:
            found = (self._executor.find(call.name) for call in turn.reply.calls)
            self._walk.after(tool.name for tool in found if tool is not None)

    def _return_to(self, exchange: Exchange) -> None:
        """Walk to where the agent was when the question was left."""
        if self._walk is None or exchange.turn is None:
            return
        self._walk.at = tuple(exchange.turn.reply.at)
        self._look()
        if exchange.unfinished() is None:
            self._move(exchange.turn)


def _named(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages that endpoints accept, whatever the model called a tool."""
    return [{**message, "name": valid_name(message["name"])} if "name" in message else message for message in messages]


def _ignore(event: AgentEvent) -> None:
    """Ignore an event."""
