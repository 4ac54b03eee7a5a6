"""The conversation of an agent: in this process alone, or kept on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from toolbus.agent.exchange import Answered, Exchange, ModelTurn
from toolbus.agent.records import End, Question, Record, Summary, decoded, encoded, with_instruction
from toolbus.bus.broker.held.conversations import MOST_BYTES, MOST_RECORDS
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.results import ConfigurationError, ConversationError, EnvelopeError

if TYPE_CHECKING:
    from toolbus.bus.broker.held.conversations import HeldConversation

# Bytes that the end of a question has at most.
_LAST = 1024
_SUMMARY = "Summary of the conversation until here, in your own words:"


class History(Protocol):
    """The questions of a conversation, of which the last one may be open.

    Attributes:
        now: seconds since 1970 when it was read.
    """

    now: float

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of all questions, for the model."""

    async def begin(self, question: Question) -> Exchange:
        """Begin a question."""

    async def add(self, record: Record) -> None:
        """Add a record to the latest question."""

    def turn_key(self, number: int) -> str:
        """Return the key that the calls of a turn share, or an empty text."""


class LocalHistory:
    """One question of an agent whose conversation ends with its process.

    Args:
        before: the messages until then.
    """

    def __init__(self, before: list[dict[str, Any]]) -> None:
        self._before = before
        self._exchange: Exchange | None = None
        self.now = 0.0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, for the model."""
        return [*self._before, *([] if self._exchange is None else self._exchange.messages())]

    async def begin(self, question: Question) -> Exchange:
        """Begin a question."""
        self._exchange = Exchange(question, 0)
        return self._exchange

    async def add(self, record: Record) -> None:
        """Add a record to the question."""
        if self._exchange is not None:
            self._exchange.add(record, len(self._exchange.turns), self.now)

    def turn_key(self, number: int) -> str:
        """Return an empty text: the calls are this process's own."""
        return ""

    def end(self) -> list[dict[str, Any]]:
        """Return the messages that stay: endpoints refuse a call without an answer, so a turn that was interrupted goes."""
        turns = [] if self._exchange is None else self._exchange.turns
        return self.messages if turns and turns[0].messages is not None else self._before


class KeptHistory:
    """The questions of a conversation that is kept, within its bounds: the oldest are dropped.

    Args:
        held: the conversation, which this process holds.
        system: the messages before all others.
        answered: the messages for the calls of a turn that was given up, as the model is told of those of any other.

    Raises:
        ConversationError: what is kept can't be read.
    """

    def __init__(self, held: HeldConversation, system: list[dict[str, Any]], answered: Answered) -> None:
        self._held = held
        self._answered = answered
        self._system = system
        self._exchanges: list[Exchange] = []
        # Bytes of each record, by its number.
        self._sizes: dict[int, int] = {}
        self._next = 0
        self._summary: Summary | None = None
        # The number of its record.
        self._summed_up = 0
        self.now = held.now
        for stored in held.records:
            try:
                self._take(decoded(stored.document), stored.number, stored.at, len(stored.document))
            except ValueError as error:
                raise ConversationError(
                    f"the conversation can't be read ({error}); `toolbus operate conversations rm` deletes it"
                ) from None

    @property
    def last(self) -> Exchange | None:
        """The latest question."""
        return self._exchanges[-1] if self._exchanges else None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of all questions, for the model."""
        made = with_instruction(self._system, f"{_SUMMARY}\n{self.summary}" if self.summary else "")
        for exchange in self._exchanges[:-1]:
            made += exchange.past()
        return made if self.last is None else [*made, *self.last.messages()]

    @property
    def summary(self) -> str:
        """The words that stand for the questions before those that are kept; empty when there are none."""
        return "" if self._summary is None else self._summary.text

    @property
    def exchanges(self) -> list[Exchange]:
        """The questions that are kept as they were, the oldest first."""
        return [*self._exchanges]

    async def summarise(self, text: str, before: Exchange) -> None:
        """Keep a summary in place of the questions before this one.

        Raises:
            ConversationError: another process continues the conversation.
            BrokerError: the server refuses.
        """
        summary = Summary(whole_text(text), before.first)
        document = encoded(summary)
        await self._held.append(document, keep=before.first)
        self._take(summary, self._next, self.now, len(document))

    def turns(self) -> list[ModelTurn]:
        """Return the model's turns of all questions."""
        return [turn for exchange in self._exchanges for turn in exchange.turns]

    def found(self, question: Question) -> Exchange | None:
        """Return the same question of before: with the same key and not given up since, or without a key and not answered.

        Raises:
            ConfigurationError: the key was another question's.
        """
        last = self.last
        if not question.key:
            return last if last is not None and last.answer() is None and last.question.text == question.text else None
        found = next((each for each in reversed(self._exchanges) if each.question.key == question.key), None)
        if found is not None and found.question != question:
            raise ConfigurationError(f"the idempotency_key {question.key!r} was another question's in this conversation")
        return found if found is last or (found is not None and found.answer() is not None) else None

    async def begin(self, question: Question) -> Exchange:
        """Begin a question.

        Raises:
            ConfigurationError: it is too long for a conversation.
            ConversationError: another process continues the conversation.
            BrokerError: the server refuses.
        """
        document = encoded(question)
        if len(document) > MOST_BYTES - _LAST:
            raise ConfigurationError(f"a question of {len(document):,} bytes is over the bound of a conversation, {MOST_BYTES:,}")
        await self._append(document, self._next)
        self._take(question, self._next, self.now, len(document))
        return self._exchanges[-1]

    async def add(self, record: Record) -> None:
        """Add a record to the latest question; one for which there is no room ends it as ``full``.

        Raises:
            ConversationError: another process continues the conversation, or JSON can't express the record.
            BrokerError: the server refuses.
        """
        exchange = self._exchanges[-1]
        try:
            document = encoded(record)
        except EnvelopeError as error:
            raise ConversationError(f"what the model said can't be kept: {error}") from None
        sizes = [size for number, size in self._sizes.items() if number >= exchange.first]
        if sum(sizes) + len(document) > MOST_BYTES - _LAST or len(sizes) + 1 >= MOST_RECORDS:
            record = End("full", len(exchange.turns))
            document = encoded(record)
        await self._append(document, exchange.first)
        self._take(record, self._next, self.now, len(document))

    def turn_key(self, number: int) -> str:
        """Return the key that the calls of a turn share, in whichever process they are made."""
        return f"conversation/{self._held.born}/{number}"

    async def _append(self, document: bytes, current: int) -> None:
        """Keep a record, and drop the oldest questions for which there is no room beside it; ``current`` is the first record that stays."""
        first = self._exchanges[0].first if self._exchanges else current
        for exchange in [*self._exchanges]:
            first = exchange.first
            if first >= current or (sum(self._sizes.values()) + len(document) <= MOST_BYTES and len(self._sizes) < MOST_RECORDS):
                break
            self._exchanges.remove(exchange)
            first = self._exchanges[0].first if self._exchanges else current
            self._sizes = {number: size for number, size in self._sizes.items() if number >= first}
        if first > self._summed_up:
            self._summary = None
        await self._held.append(document, keep=first)

    def _take(self, record: Record, number: int, at: float, size: int) -> None:
        if isinstance(record, Question):
            if self.last is not None:
                self.last.give_up(self._answered)
            self._exchanges.append(Exchange(record, number))
        elif self.last is None:
            raise ValueError(f"its record {number} comes before any question")
        elif isinstance(record, Summary):
            if record.before > self.last.first:
                raise ValueError(f"its record {number} sums up the latest question")
            self._summary, self._summed_up = record, number
            self._exchanges = [each for each in self._exchanges if each.first >= record.before]
            self._sizes = {each: size for each, size in self._sizes.items() if each >= record.before}
        else:
            self.last.add(record, number, at)
        self._sizes[number] = size
        self._next = number + 1
