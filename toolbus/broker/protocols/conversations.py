"""The conversations of agents that outlive their processes."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import msgspec


class StoredRecord(msgspec.Struct, frozen=True):
    """One record of a conversation.

    Attributes:
        number: its place, from 0; the oldest ones are dropped in time.
        at: when it was kept, in seconds since 1970 by the server's clock.
        document: its JSON.
    """

    number: int
    at: float
    document: bytes


class ConversationInfo(msgspec.Struct, frozen=True):
    """A conversation as an operator sees it; times in seconds since 1970 by the server's clock."""

    user: str
    id: str
    records: int
    used_at: float
    expires_at: float
    held: bool


class HeldConversation(Protocol):
    """A conversation that this process alone continues, for ``async with``.

    Entering waits while the lease of a process that may be dead goes on, at most one lease, and raises ``ConversationBusy`` when that
    process turns out to live, or ``ConversationError`` when the conversation can't be read. Leaving lets go of it. When another process
    takes it over meanwhile, the body is cancelled and ``ConversationError`` raised.

    Attributes:
        born: a token that no other conversation has, also of the same name before it or after it.
        records: those that are kept, in order.
        now: seconds since 1970 by the server's clock, when it was entered.
    """

    born: str
    records: list[StoredRecord]
    now: float

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    async def append(self, document: bytes, *, keep: int) -> None:
        """Keep one more record, and drop those before the number ``keep``.

        Raises:
            ConversationError: another process holds the conversation, or it was deleted; nothing was written.
            BrokerError: the server refuses.
        """


class Conversations(Protocol):
    """The conversations of a namespace."""

    def hold(self, user: str, id: str) -> HeldConversation:
        """Return a user's conversation, to be held by ``async with``; it begins when there is none.

        Raises:
            ConfigurationError: the id is empty, too long, or has invisible or imitating characters.
        """

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def read(self, user: str, id: str) -> list[StoredRecord]:
        """Return the records of a conversation without holding it; none when there is no such conversation.

        Raises:
            ConversationError: it can't be read.
            BrokerError: the server could not be asked.
        """

    async def remove(self, user: str, id: str, *, force: bool = False) -> bool:
        """Delete a conversation; False when there was none.

        Raises:
            ConversationBusy: a process continues it, and ``force`` is not given.
            BrokerError: the server could not be asked.
        """
