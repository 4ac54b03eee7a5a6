"""A conversation that is kept on the server, held by one process at a time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolbus.bus import telemetry
from toolbus.bus.broker.held.conversations import Begun, Name, name_of
from toolbus.bus.broker.protocols import StoredRecord
from toolbus.bus.support.display import visible
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ConfigurationError, ConversationBusy, ConversationError

if TYPE_CHECKING:
    from toolbus.bus.broker.held.conversations import Conversations

# The lease is renewed, and one of another process looked at, so often.
_RENEWALS = 3
_LOOKS = 10
_LEAST_PAUSE = 0.01


def name_to_hold(user: str, id: str) -> Name:
    """Return the name of a user's conversation that is begun or continued.

    Raises:
        ConfigurationError: it is none, see ``name_of``, or the id has characters that are invisible, that turn text, or that command a
            terminal.
    """
    name = name_of(user, id)
    if visible(id) != id:
        raise ConfigurationError(f"the id of a conversation has invisible or imitating characters: '{visible(id)}'")
    return name


class HeldConversation:
    """A conversation that this process alone continues, for ``async with``.

    Entering waits while the lease of a process that may be dead goes on, at most one lease, and raises ``ConversationBusy`` when that
    process turns out to live, or ``ConversationError`` when the conversation can't be read. Leaving lets go of it. When another process
    takes it over meanwhile, the body is cancelled and ``ConversationError`` raised.

    Args:
        conversations: of the namespace.
        user: whose conversation it is.
        id: of the conversation, which begins when there is none.

    Attributes:
        born: a token that no other conversation has, also of the same name before it or after it.
        records: those that are kept, in order.
        now: seconds since 1970 by the server's clock, when it was entered.

    Raises:
        ConfigurationError: see ``name_to_hold``.
    """

    def __init__(self, conversations: Conversations, user: str, id: str) -> None:
        self._steps = conversations
        self._name = name_to_hold(user, id)
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
        """Keep one more record, and drop those before the number ``keep``.

        Raises:
            ConversationError: another process holds the conversation, or it was deleted; nothing was written.
            BrokerError: the server refuses.
        """
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
