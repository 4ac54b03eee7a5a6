"""Kept conversations that something else wrote to: each ends in one error that says what to do."""

from __future__ import annotations

import pytest
import redis

from tests.agent.endpoint import says
from tests.agent.keeping import setting
from tests.contract import Place
from tests.faults import hostile
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import ConversationError

pytestmark = pytest.mark.anyio

RECORDS = (
    b'1 {"type": "reply", "message": {}, "calls": []}',
    b'1 {"type": "reply", "message": {"role": "assistant", "tool_calls":[{"id":"a","function":{}}]}, "calls": [{"id": "a", "name": ""}]}',
    b'1 {"type": "reply", "message": {"role": "assistant", "tool_calls": 5}, "calls": []}',
    b'1 {"type": "results", "messages": [], "results": {"a": {"success": true}}}',
    b'1 {"type": "result", "id": "a", "result": {}}',
    b'1 {"type": "end", "reason": "other", "turns": 1}',
    b'1 {"type": "question", "text": "\xff"}',
    b"x {}",
    b"1 {}",
    b"1",
)
"""Records that nothing of toolbus writes."""


class Damage:
    """A conversation of one question, whose key can be overwritten."""

    def __init__(self, place: Place) -> None:
        self.redis = redis.Redis.from_url(place.settings.url)
        self._keys = Keys(place.settings.namespace)

    def key(self) -> str:
        """The one conversation's key."""
        (member,) = self.redis.zrange(self._keys.conversations, 0, -1)
        return self._keys.conversation(member.decode())


@pytest.mark.usefixtures("slow")
async def test_damaged_conversations_end_in_one_error(place: Place) -> None:
    """Every hostile value in every field is passed over or one error that says what to do, and the conversation can be deleted."""
    async with setting(place, lambda body: says("yes")) as given, given.agent() as agent:
        await agent.ask("first")
        kept, damage = agent._executor.state.steps.conversations, Damage(place)
        key = damage.key()
        good = damage.redis.hgetall(key)
        said: set[str] = set()
        errors: set[str] = set()
        for field in (*good, b"other", b"m:2"):
            for value in (*hostile.BYTES, *RECORDS):
                damage.redis.delete(key)
                damage.redis.hset(key, mapping={**good, field: value})
                # Another client sets no TTL.
                damage.redis.expire(key, 60)
                try:
                    said.add((await agent.ask("second")).text)
                except ConversationError as error:
                    errors.add(str(error))
                await kept.newest(10)
        assert said == {"yes"}
        assert len(errors) > 10
        assert [error for error in errors if "`toolbus operate conversations rm`" not in error or "\n" in error] == []
        damage.redis.delete(key)
        damage.redis.rpush(key, "other")
        damage.redis.expire(key, 60)
        with pytest.raises(ConversationError, match="toolbus operate conversations rm"):
            await agent.ask("third")
        assert await kept.remove("", "c")
        damage.redis.set(Keys(place.settings.namespace).conversations, "other", ex=60)
        assert (await agent.ask("fourth")).text == "yes"
        assert [each.id for each in await kept.newest(10)] == ["c"]
        damage.redis.close()
