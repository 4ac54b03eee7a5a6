"""Count what a task's requests to the model cost, and end the task that costs too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.agent import ChatEndpoint, EndpointError
from toolbus.agent.reply import Reply
from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import ClaimedCreation, Creation, Spent
from toolbus.bus.broker.protocols.documents import MOST_LINE, MOST_LINES
from toolbus.bus.values.results import BrokerError, ConfigurationError

if TYPE_CHECKING:
    from toolbus.bus.broker.held.creations import Creations

# A token of a text has about so many characters, where the endpoint does not count them.
_CHARACTERS = 4
_MOST_TOKENS = 2**40


class Prices(msgspec.Struct, frozen=True):
    """Prices of models for a million tokens, of the request and of the answer, in any currency."""

    of: dict[str, tuple[float, float]] = {}

    @classmethod
    def read(cls, text: str) -> Prices:
        """Return the prices that a text like ``gpt-5=1.25/10, gpt-5-mini=0.25/2`` names; ``*`` stands for all other models.

        Raises:
            ConfigurationError: it names none.
        """
        found: dict[str, tuple[float, float]] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            model, _, said = part.rpartition("=")
            asked, _, answered = said.partition("/")
            try:
                prices = float(asked), float(answered or asked)
            except ValueError:
                prices = (-1.0, -1.0)
            if not model.strip() or not all(0 <= price < 1e6 for price in prices):
                raise ConfigurationError(f"TOOLBUS_MODEL_PRICES: {part!r} is no model=price/price, like gpt-5=1.25/10")
            found[model.strip()] = prices
        return cls(found)

    def price(self, model: str, prompt: int, completion: int) -> int:
        """Return the price of so many tokens, in millionths; 0 for a model without a price."""
        asked, answered = self.of.get(model) or self.of.get("*") or (0.0, 0.0)
        return round(prompt * asked + completion * answered)


class OverBudget(EndpointError):
    """A task has cost as much as it may."""


class MeteredEndpoint(ChatEndpoint):
    """An endpoint that counts tokens and prices of one task.

    Args:
        base_url, api_key: see ``ChatEndpoint``.
        model: whose prices count.
        prices: of the models.
        spent: the cost until now.
        most_tokens: of the whole task.
        most_price: in millionths; 0 for no limit.
        tell: hears the whole cost after each request.
        looping: returns why the task is to end before its next request; an empty text while it goes on.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        model: str,
        prices: Prices,
        spent: Spent,
        most_tokens: int,
        most_price: int,
        tell: Callable[[Spent], object],
        looping: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(base_url, api_key)
        self._model = model
        self._prices = prices
        self._spent = spent
        self._most_tokens = most_tokens
        self._most_price = most_price
        self._tell = tell
        self._looping = looping

    async def complete(self, body: Mapping[str, Any], on_text: Callable[[str], object] = lambda text: None) -> Reply:
        """Return one chat completion.

        Raises:
            OverBudget: the task has cost as much as it may, or goes round in a loop.
            EndpointError: there is no complete answer.
        """
        if reason := self._looping():
            raise OverBudget(reason)
        if self._spent.tokens >= self._most_tokens:
            raise OverBudget(f"the task has used {self._spent.tokens:,} tokens, and may use {self._most_tokens:,}")
        if self._most_price and self._spent.price >= self._most_price:
            raise OverBudget(f"the task has cost {self._spent.price / 1e6:.2f}, and may cost {self._most_price / 1e6:.2f}")
        reply = await super().complete({**body, "stream_options": {"include_usage": True}}, on_text)
        prompt, completion = _tokens(body, reply)
        was = self._spent
        price = was.price + self._prices.price(self._model, prompt, completion)
        self._spent = Spent(was.prompt_tokens + prompt, was.completion_tokens + completion, price)
        self._tell(self._spent)
        return reply


def _tokens(body: Mapping[str, Any], reply: Reply) -> tuple[int, int]:
    """Return the tokens of a request and of its answer, as the endpoint counted them or about."""
    usage = reply.usage if isinstance(reply.usage, Mapping) else {}
    counted = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    said = len(msgspec.json.encode(body)), len(msgspec.json.encode(reply.message()))
    prompt, completion = (
        count if type(count) is int and 0 <= count < _MOST_TOKENS else about // _CHARACTERS
        for count, about in zip(counted, said, strict=True)
    )
    return prompt, completion


# The lease is renewed so often.
_RENEWALS = 3
_MOST_WAITING = MOST_LINES


class Job:
    """A task that this process runs.

    Attributes:
        cancelled: whether somebody asked for its end.
        lost: whether another process runs it now.
    """

    def __init__(self, creations: Creations, claimed: ClaimedCreation) -> None:
        self._creations = creations
        self._claimed = claimed
        self._first = claimed.creation.lines
        self._lines: list[str] = []
        self._progress: str | None = None
        self._spent: Spent | None = None
        self._news = asyncio.Event()
        self.cancelled = False
        self.lost = False

    @property
    def creation(self) -> Creation:
        """The task as it was claimed."""
        return self._claimed.creation

    @property
    def claimed(self) -> ClaimedCreation:
        """The claim."""
        return self._claimed

    def log(self, line: str) -> None:
        """Add a line to the task's log. Returns at once; beyond some hundred that wait, the oldest are dropped."""
        for each in (line.splitlines() or [""])[:_MOST_WAITING]:
            self._lines.append(each[:MOST_LINE])
        while len(self._lines) > _MOST_WAITING:
            del self._lines[0]
            self._first += 1
        self._news.set()

    def progress(self, text: str) -> None:
        """Tell what it does now. Returns at once."""
        self._progress = " ".join(text.split())[:MOST_LINE]
        self._news.set()

    def spent(self, spent: Spent) -> None:
        """Tell its whole cost. Returns at once."""
        self._spent = spent
        self._news.set()

    async def keep(self) -> None:
        """Write what is told and renew the lease, until the task is cancelled or lost.

        Raises:
            BrokerError: the server refuses.
        """
        while not (self.cancelled or self.lost):
            await self.write()
            if self.cancelled or self.lost:
                return
            await self._wait()

    async def write(self) -> None:
        """Write what was told until now, and renew the lease.

        Raises:
            BrokerError: the server refuses.
        """
        self._news.clear()
        first, lines = self._first, tuple(self._lines)
        answer = await self._creations.write(self._claimed, first=first, lines=lines, progress=self._progress, spent=self._spent)
        self.cancelled = answer == "cancel"
        self.lost = answer == "lost"
        # The oldest may have been dropped meanwhile.
        written = max(0, first + len(lines) - self._first)
        del self._lines[:written]
        self._first += written

    async def _wait(self) -> None:
        """Wait until there is something to tell, something changes, or it is time to renew."""
        seen = self._creations.changes
        changed = asyncio.ensure_future(self._creations.wait(self._creations.lease / _RENEWALS, seen))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((changed, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (changed, news):
                each.cancel()
        # What is told in one moment goes together.
        await asyncio.sleep(0.02)


async def end(job: Job, creations: Creations, status: str, result: str, delay: float = 0.0) -> bool:
    """End a job, and return whether that was written: a task that can't be ended goes on elsewhere when its lease ends."""
    try:
        await job.write()
        return await creations.end(job.claimed, status, result, delay=delay)  # type: ignore[arg-type] # its callers have literals
    except BrokerError as error:
        telemetry.log.warning("creation.not_ended", id=job.creation.id, error=str(error))
        return False
