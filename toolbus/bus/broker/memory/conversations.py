"""The conversations of one event loop, for ``memory://``."""

from __future__ import annotations

import time

import msgspec

from toolbus.bus.broker.conversations import MOST_LISTED, Begun, Elsewhere, Held, Name, busy, name_of, name_to_hold
from toolbus.bus.broker.protocols.documents import ConversationInfo, StoredRecord
from toolbus.bus.values.settings import Settings


class _Kept(msgspec.Struct):
    """One conversation; times in seconds."""

    born: str
    holder: str = ""
    until: float = 0.0
    used: float = 0.0
    first: int = 0
    records: list[StoredRecord] = []

    @property
    def next(self) -> int:
        """The number of the next record."""
        return self.first + len(self.records)


class MemoryConversations:
    """``Conversations`` within one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._ttl = settings.conversation_ttl
        self._kept: dict[Name, _Kept] = {}
        self.lease = min(settings.lease, 10.0)
        self.patience = settings.timeout + self.lease

    def hold(self, user: str, id: str) -> Held:
        """Return a user's conversation, to be held by ``async with``."""
        return Held(self, name_to_hold(user, id))

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first."""
        self._forget_old()
        now = time.time()
        found = [
            ConversationInfo(name.user, name.id, len(kept.records), kept.used, kept.used + self._ttl, now < kept.until)
            for name, kept in self._kept.items()
        ]
        return sorted(found, key=lambda each: (-each.used_at, each.user, each.id))[:limit]

    async def read(self, user: str, id: str) -> list[StoredRecord]:
        """Return the records of a conversation without holding it."""
        self._forget_old()
        kept = self._kept.get(name_of(user, id))
        return [] if kept is None else [*kept.records]

    async def remove(self, user: str, id: str, *, force: bool = False) -> bool:
        """Delete a conversation; False when there was none."""
        self._forget_old()
        name = name_of(user, id)
        kept = self._kept.get(name)
        if kept is not None and not force and time.time() < kept.until:
            raise busy(name, kept.until - time.time())
        return self._kept.pop(name, None) is not None

    # -- ConversationSteps ------------------------------------------------------------------------

    async def begin(self, name: Name, token: str) -> Begun | Elsewhere:
        """Hold a conversation, unless another token does."""
        self._forget_old()
        now = time.time()
        kept = self._kept.setdefault(name, _Kept(token))
        if kept.holder not in {"", token} and now < kept.until:
            return Elsewhere(str(kept.until), kept.until - now)
        kept.holder, kept.until, kept.used = token, now + self.lease, now
        while len(self._kept) > MOST_LISTED:
            del self._kept[min(self._kept, key=lambda each: self._kept[each].used)]
        return Begun(kept.born, kept.first, kept.next, now)

    async def records(self, name: Name, first: int, following: int) -> list[StoredRecord]:
        """Return the records with these numbers."""
        kept = self._kept.get(name)
        return [] if kept is None else [each for each in kept.records if first <= each.number < following]

    async def append(self, name: Name, token: str, number: int, documents: list[bytes], keep: int) -> int | None:
        """Append documents whose first has this number."""
        kept = self._kept.get(name)
        if kept is None or kept.holder != token:
            return None
        now = time.time()
        new = [StoredRecord(number + place, now, each) for place, each in enumerate(documents)]
        kept.records = [each for each in (*kept.records, *new) if each.number >= keep]
        kept.first, kept.used, kept.until = max(kept.first, keep), now, now + self.lease
        return kept.next

    async def renew(self, name: Name, token: str) -> bool:
        """Extend the lease; False when the token does not hold it."""
        kept = self._kept.get(name)
        if kept is None or kept.holder != token:
            return False
        kept.until = time.time() + self.lease
        return True

    def release(self, name: Name, token: str) -> None:
        """End the lease; a conversation that nothing was written to goes."""
        kept = self._kept.get(name)
        if kept is None or kept.holder != token:
            return
        kept.until = 0.0
        if not kept.next:
            del self._kept[name]

    def _forget_old(self) -> None:
        limit = time.time() - self._ttl
        for name in [name for name, kept in self._kept.items() if kept.used < limit and time.time() >= kept.until]:
            del self._kept[name]
