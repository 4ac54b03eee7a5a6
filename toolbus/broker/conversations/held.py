"""``Held``: a conversation while this process alone continues it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

import msgspec

from toolbus import telemetry
from toolbus.broker.conversations.names import Name
from toolbus.broker.protocols.conversations import StoredRecord
from toolbus.envelope import new_id
from toolbus.results import BrokerError, BrokerUnavailable, ConversationBusy, ConversationError

MOST_RECORDS = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Most records of a conversation, and most bytes of their documents."""

MOST_LISTED = 10_000
"""Most conversations that are listed; older ones beyond are kept, too."""

# The lease is renewed, and one of another process looked at, so often.
_RENEWALS = 3
_LOOKS = 10
_LEAST_PAUSE = 0.01


class Begun(msgspec.Struct, frozen=True):
    """A conversation is held now; its records have the numbers from ``first`` to before ``next``, ``now`` is in seconds."""

    born: str
    first: int
    next: int
    now: float


class Elsewhere(msgspec.Struct, frozen=True):
    """Another process holds it for ``left`` seconds, unless it renews its lease; then ``ends`` changes."""

    ends: str
    left: float


class ConversationSteps(Protocol):
    """The atomic steps on one conversation; each raises ``BrokerError`` when the server refuses.

    Attributes:
        lease: seconds for which a process holds a conversation without a renewal.
        patience: seconds for which a process waits for a conversation in all, also for the server.
    """

    lease: float
    patience: float

    async def begin(self, name: Name, token: str) -> Begun | Elsewhere:
        """Hold a conversation, unless another token does."""

    async def records(self, name: Name, first: int, following: int) -> list[StoredRecord]:
        """Return the records with these numbers; raises ConversationError when they can't be read."""

    async def append(self, name: Name, token: str, number: int, documents: list[bytes], keep: int) -> int | None:
        """Append documents whose first has this number; None when the token does not hold it, else the number of the next record."""

    async def renew(self, name: Name, token: str) -> bool:
        """Extend the lease; False when the token does not hold it."""

    def release(self, name: Name, token: str) -> None:
        """End the lease. Returns at once."""


class Held:
    """``HeldConversation`` on any broker.

    The keeper renews the lease beside the body. What another process has taken over can't be written any more, whatever this one knows.
    """

    def __init__(self, steps: ConversationSteps, name: Name) -> None:
        self._steps = steps
        self._name = name
        self._token = new_id()
        self._next = 0
        self._group = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._scope = asyncio.timeout(None)
        self._keeper: asyncio.Task[None] | None = None
        self.born = ""
        self.records: list[StoredRecord] = []
        self.now = 0.0

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._steps.patience):
                begun = await self._begin()
                self.records = await self._steps.records(self._name, begun.first, begun.next)
        except TimeoutError:
            self._steps.release(self._name, self._token)
            raise self._silent() from None
        except BaseException:
            self._steps.release(self._name, self._token)
            raise
        self.born, self.now, self._next = begun.born, begun.now, begun.next
        await self._stack.enter_async_context(self._group)
        await self._scope.__aenter__()
        self._keeper = self._group.create_task(self._keep())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self._steps.release(self._name, self._token)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._lost() from None
        finally:
            await self._stack.aclose()

    async def append(self, document: bytes, *, keep: int) -> None:
        """Keep one more record; records that a failover lost are written again."""
        self.records = [*(each for each in self.records if each.number >= keep), StoredRecord(self._next, self.now, document)]
        try:
            async with asyncio.timeout(self._steps.patience):
                await self._append(keep)
        except TimeoutError:
            raise self._silent() from None

    async def _append(self, keep: int) -> None:
        number = self._next
        while True:
            documents = [each.document for each in self.records if each.number >= number]
            reached = await self._steps.append(self._name, self._token, number, documents, keep)
            if reached is None:
                raise self._lost()
            if reached > self._next:
                self._next += 1
                return
            if reached >= number or reached < self.records[0].number:
                raise self._lost()
            telemetry.log.warning("conversation.behind", missing=number - reached)
            number = reached

    async def _begin(self) -> Begun:
        seen = ""
        while True:
            found = await self._steps.begin(self._name, self._token)
            if isinstance(found, Begun):
                return found
            if seen not in {"", found.ends}:
                raise ConversationBusy(f"another process continues the conversation {self._name.id!r}; it lives, for it renewed its lease")
            seen = found.ends
            await asyncio.sleep(max(_LEAST_PAUSE, min(found.left, self._steps.lease / _LOOKS)))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._steps.lease / _RENEWALS)
            try:
                if await self._steps.renew(self._name, self._token):
                    continue
            except BrokerError as error:
                telemetry.log.warning("conversation.not_renewed", error=str(error))
                continue
            self._scope.reschedule(asyncio.get_running_loop().time())
            return

    def _silent(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the server has said nothing of the conversation {self._name.id!r} for {self._steps.patience:g} s")

    def _lost(self) -> ConversationError:
        return ConversationError(
            f"the conversation {self._name.id!r} is not this process's any more: another one continues it, or it was deleted"
        )


def busy(name: Name, left: float) -> ConversationBusy:
    """Return the error for a conversation that a process continues."""
    return ConversationBusy(f"a process continues the conversation {name.id!r}, or has died within the last {left:.0f} s")
