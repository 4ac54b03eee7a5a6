"""The chats of one event loop, for ``memory://``."""

from __future__ import annotations

import time

from toolbus.broker.chats import windows_of
from toolbus.broker.protocols.documents import ChatWindow, Conversations, Messenger


class MemoryChats:
    """``Chats`` within one event loop."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._told: tuple[Messenger, float] | None = None

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations."""
        return await windows_of(self._conversations, await self.messenger(), limit)

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives."""
        return self._told[0] if self._told is not None and time.monotonic() < self._told[1] else None

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now."""
        self._told = messenger, time.monotonic() + seconds
