"""Results of sessions that all processes share: what is kept of them, and what stands there that nothing of toolbus wrote."""

from __future__ import annotations

import msgspec
import pytest
import redis

from tests.client.executing import chat, find_docs, info
from tests.contract import Place
from tests.gateway.running import client_of
from toolbus import ToolBus
from toolbus.bus.broker.held.tasks import SessionResults
from toolbus.bus.broker.protocols import MOST_BYTES, MOST_RESULTS
from toolbus.bus.broker.server.keys import Keys, session_digest

pytestmark = pytest.mark.anyio


def shared(bus: ToolBus) -> SessionResults:
    """Return the results that a bus shares with others."""
    return bus.executor().state.steps.results


async def test_the_latest_results_are_kept(place: Place) -> None:
    """Of many results the oldest go, and of large ones too, each session for itself; a session's user is a part of its name."""
    async with place.bus() as bus:
        results = shared(bus)
        for number in range(MOST_RESULTS + 5):
            await results.keep("u", "many", [b"%d" % number])
        found = await results.read("u", "many")
        assert (len(found), found[0], found[-1]) == (MOST_RESULTS, b"5", b"%d" % (MOST_RESULTS + 4))
        await results.keep("u", "large", [bytes([65 + number]) * (MOST_BYTES // 4) for number in range(6)])
        assert [each[:1] for each in await results.read("u", "large")] == [b"C", b"D", b"E", b"F"]
        await results.keep("u", "huge", [b"x" * (MOST_BYTES + 1)])
        assert await results.read("u", "huge") == []
        assert await results.read("other", "many") == []
        await results.keep("u", "nothing", [])
        assert await results.read("u", "nothing") == []


async def test_results_have_an_end(place: Place) -> None:
    """A session that is not used for the retention time leaves nothing behind."""
    key = Keys(place.settings.namespace).results(session_digest("u", "s"))
    async with place.bus(retention=90.0) as bus:
        await shared(bus).keep("u", "s", [b"1"])
        with redis.Redis.from_url(place.settings.url) as client:
            assert 0 < client.pttl(key) <= 90_000


HOSTILE = [b"", b"{", b"[1]", b'["c1"]', b'["c1","find.docs",{"results":7}]', b"\xff", b"[" * 10_000, b'["c1","' + b"x" * 300_000 + b'"]']


async def test_hostile_results_are_passed_over(url: str, namespace: str) -> None:
    """A document that can't be read hides no other, a key of another type is made anew, and each reference is answered."""
    keys = Keys(namespace)
    key = keys.results(session_digest("", "s"))
    place = Place(url, namespace)
    refers = [chat("c9", "info", {"ids": [{"$from": "good", "path": "results[0].id"}]})]
    async with place.serving(find_docs, info) as bus, client_of(bus) as client:
        with redis.Redis.from_url(url) as server:
            for document in HOSTILE:
                server.rpush(key, document)
            server.rpush(key, msgspec.json.encode(["good", "find.docs", {"results": [{"id": "q-1"}]}]))
            server.pexpire(key, 60_000)
            answered = await client.post("/v1/tool_calls", json=refers, headers={"Toolbus-Session": "s"})
            assert answered.json()["messages"][0]["content"] == "['q-1'] for "
            server.delete(key)
            server.hset(key, "a", "b")
            answered = await client.post("/v1/tool_calls", json=refers, headers={"Toolbus-Session": "s"})
            assert answered.status_code == 200
            assert server.type(key) == b"list"
