"""Tell which chats there are, and which of them a messenger shows."""

from __future__ import annotations

import msgspec

from toolbus.broker.keys import Keys
from toolbus.broker.protocols.documents import CHAT, ChatWindow, Conversations, Messenger
from toolbus.broker.reading import document, skip
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import encode
from toolbus.results import EnvelopeError

_messengers = msgspec.json.Decoder(Messenger)


class RedisChats:
    """``Chats`` on a server."""

    def __init__(self, link: Transport, keys: Keys, conversations: Conversations) -> None:
        self._link = link
        self._key = keys.messenger
        self._conversations = conversations

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations."""
        return await windows_of(self._conversations, await self.messenger(), limit)

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives."""
        said = await self._link.execute("GET", self._key, repeatable=True)
        if said is None:
            return None
        try:
            return document(said, _messengers)
        except EnvelopeError as error:
            skip(self._key, str(error))
            return None

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now."""
        await self._link.execute("SET", self._key, encode(messenger), "PX", max(1, int(seconds * 1000)), repeatable=True)


async def windows_of(conversations: Conversations, messenger: Messenger | None, limit: int) -> list[ChatWindow]:
    """Return the chats among the latest conversations."""
    shown = frozenset() if messenger is None else frozenset(messenger.windows)
    return [
        ChatWindow(chat_id, each.user, each.id, each.used_at, chat_id in shown)
        for each in await conversations.newest(limit)
        if each.id.startswith(CHAT) and (chat_id := each.id.removeprefix(CHAT))
    ]
