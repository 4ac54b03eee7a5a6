"""The chats with the service agent, and the messenger that shows them."""

from __future__ import annotations

from typing import Protocol

import msgspec

CHAT = "chat/"
"""Begins the id of a chat's conversation; the rest is the chat's own id."""


class Messenger(msgspec.Struct, frozen=True):
    """The connector of a messenger, as it tells of itself.

    Attributes:
        id: fresh at each start.
        connected: whether its socket is open.
        windows: the chats that it has shown lately.
    """

    id: str
    connected: bool = False
    windows: tuple[str, ...] = ()


class ChatWindow(msgspec.Struct, frozen=True):
    """One chat with the service agent.

    Attributes:
        session_id: id of its conversation, see ``toolbus conversations``.
        used_at: seconds since 1970 by the server's clock.
    """

    chat_id: str
    user: str
    session_id: str
    used_at: float
    has_im_window: bool


class Chats(Protocol):
    """The chats of a namespace."""

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now.

        Raises:
            BrokerError: the server refuses.
        """
