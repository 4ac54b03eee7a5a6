"""The chats of a namespace, as they are listed."""

from __future__ import annotations

import pytest

from tests.agent.endpoint import says
from tests.assistant.talking import chatting
from tests.contract import Place
from tests.servers import eventually
from toolbus.agent.history import HeldConversation
from toolbus.bus.broker.protocols import Messenger

pytestmark = pytest.mark.anyio


async def test_chats_are_listed_with_their_messenger(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chat is listed, the latest first, and tells whether a messenger shows it; other conversations are none."""
    async with chatting(place, monkeypatch, lambda body: says("hi")) as chats:
        await chats.say("hello", "a")
        await chats.say("hello", "b", user="bob")
        async with HeldConversation(chats.bus.executor(model="m").state.steps.conversations, "", "create_0123abcd"):
            pass
        await chats.bus.chats.tell(Messenger("m1", connected=True, windows=("a",)), 60)
        found = await chats.bus.chats.windows(100)
        assert [(each.chat_id, each.user, each.session_id, each.has_im_window) for each in found] == [
            ("b", "bob", "chat/b", False),
            ("a", "", "chat/a", True),
        ]
        assert await chats.bus.chats.messenger() == Messenger("m1", connected=True, windows=("a",))
        await chats.bus.chats.tell(Messenger("m1"), 0.001)

        async def gone() -> bool:
            return await chats.bus.chats.messenger() is None

        await eventually(gone)
        assert [each.has_im_window for each in await chats.bus.chats.windows(100)] == [False, False]
