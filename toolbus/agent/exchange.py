"""``Exchange``: one question and what has happened since, as far as it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolbus.agent.records import CallResult, End, ModelReply, Question, Reason, Record, Summary, TurnResults
from toolbus.agent.reply import spoken
from toolbus.bus.client.executor.toolcalls import ModelCall
from toolbus.bus.values.results import ErrorInfo, ToolResult

_INTERRUPTED = ToolResult.fail(
    ErrorInfo("outcome_unknown", "given_up", "the question was given up while this call ran; it may or may not have taken effect")
)

Answered = Callable[[Sequence[ModelCall], Sequence[ToolResult]], list[dict[str, Any]]]
"""Return the messages that answer a model's calls."""


class Answer(msgspec.Struct, frozen=True):
    """The end of a question.

    Attributes:
        text: the model's last text.
        reason: ``answered``; ``length`` when the endpoint cut the answer off; ``turns``, ``time`` or ``full`` when a limit was reached.
        turns: number of requests to the model.
        calls, failed: number of tool calls that ended, and of those that failed.
    """

    text: str
    reason: Reason
    turns: int
    calls: int
    failed: int


class ModelTurn:
    """One reply of the model, and the results of its calls.

    Attributes:
        number: the place of the reply in the conversation; with the conversation's own token it names the turn.
        at: when the reply was kept, in seconds since 1970.
        messages: those that answer the calls, once all have ended.
    """

    def __init__(self, reply: ModelReply, number: int, at: float) -> None:
        self.reply = reply
        self.number = number
        self.at = at
        self.results: dict[str, ToolResult] = {}
        self.messages: list[dict[str, Any]] | None = None if reply.calls else []

    def pending(self) -> list[ModelCall]:
        """Return the calls that have no result yet."""
        return [call for call in self.reply.calls if call.id not in self.results]

    def give_up(self, answered: Answered) -> None:
        """Answer the calls of a turn that will not end: endpoints refuse a call without an answer."""
        calls = self.reply.calls
        self.messages = answered(calls, [self.results.get(call.id, _INTERRUPTED) for call in calls])


class Exchange:
    """One question, the model's turns, and its end; ``add`` is the only thing that changes it.

    Attributes:
        first: the number of the question's record.
    """

    def __init__(self, question: Question, first: int) -> None:
        self.question = question
        self.first = first
        self.turns: list[ModelTurn] = []
        self.end: End | None = None

    def add(self, record: Record, number: int, at: float) -> None:
        """Take in a record.

        Raises:
            ValueError: it can't follow those before it.
        """
        turn = self.turns[-1] if self.turns else None
        pending = turn is not None and turn.messages is None
        if self.answer() is not None or isinstance(record, (Question, Summary)):
            raise ValueError(f"its record {number} comes after the end of a question")
        if isinstance(record, End):
            self.end = record
        elif isinstance(record, ModelReply) and not pending and _is_whole(record):
            self.turns.append(ModelTurn(record, number, at))
        elif turn is None or not pending or isinstance(record, ModelReply):
            raise ValueError(f"its record {number} does not follow those before it")
        else:
            found = {record.id: record.result} if isinstance(record, CallResult) else record.results
            if not found.keys() <= {call.id for call in turn.pending()}:
                raise ValueError(f"its record {number} is the result of no call")
            turn.results |= found
            turn.messages = record.messages if isinstance(record, TurnResults) else None

    @property
    def turn(self) -> ModelTurn | None:
        """The last turn of the model."""
        return self.turns[-1] if self.turns else None

    def unfinished(self) -> ModelTurn | None:
        """Return the last turn when calls of it may still run."""
        turn = self.turn
        return turn if turn is not None and turn.messages is None else None

    def answer(self) -> Answer | None:
        """Return the answer, when the question has ended."""
        if self.end is not None:
            return self._answer("", self.end.reason, self.end.turns)
        if self.turn is None or self.turn.reply.calls:
            return None
        text = self.turn.reply.message.get("content")
        return self._answer(spoken(text) if isinstance(text, str) else "", "length" if self.turn.reply.finish == "length" else "answered")

    def given_up(self, reason: Reason) -> Answer:
        """Return the end of a question that has no answer."""
        return self._answer("", reason, len(self.turns) + (self.unfinished() is None))

    def _answer(self, text: str, reason: Reason, turns: int = 0) -> Answer:
        results = [result for turn in self.turns for result in turn.results.values()]
        return Answer(text, reason, turns or len(self.turns), len(results), sum(not result.success for result in results))

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the question as far as the model has got, without a turn that has not ended."""
        found: list[dict[str, Any]] = [{"role": "user", "content": self.question.text}]
        for turn in self.turns:
            if turn.messages is not None:
                found += [turn.reply.message, *turn.messages]
        return found

    def give_up(self, answered: Answered) -> None:
        """Answer the calls that have not ended, since another question follows."""
        if (turn := self.unfinished()) is not None:
            turn.give_up(answered)

    def past(self) -> list[dict[str, Any]]:
        """Return the messages for a later question: nothing of one for which the model never answered."""
        return self.messages() if self.turns else []


def _is_whole(reply: ModelReply) -> bool:
    """Return whether a reply is one that an endpoint takes back: the calls in its message are those beside it."""
    calls = reply.message.get("tool_calls") or []
    if reply.message.get("role") != "assistant" or not isinstance(calls, list):
        return False
    named = [
        call.get("function", {}).get("name") for call in calls if isinstance(call, dict) and isinstance(call.get("function", {}), dict)
    ]
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    if not len(named) == len(ids) == len(calls):
        return False
    return all(isinstance(name, str) for name in named) and ids == [call.id for call in reply.calls]
