"""Registration: what a worker that was forgotten is told when it comes back, and whose names and queues are."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import redis

from tests.broker.conftest import ScriptPlace
from tests.contract import Place
from toolbus import ToolService, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import RegistrationRefused


class Registering:
    """A registry whose one worker is played by hand."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys

    def register(self) -> bytes:
        """Register the worker ``mine``; its fence counter."""
        keys = self.keys
        service = (keys.instances("pool"), keys.queue("pool"), keys.fence("pool"), keys.cancelled("pool"))
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *service)
        common = (keys.prefix, "token", 60_000, 0)
        args = ("pool", "mine", "owner", "digest", "{}", 1000, secrets.token_hex(8), 0, "pool", 0)
        answer: Any = self.redis.eval(scripts.REGISTER.source, len(tables), *tables, *common, *args)
        assert answer[0] == b"ok"
        counter: bytes = answer[3]
        return counter

    def retire(self) -> float | None:
        """Leave the request stream; when the lease ends that it leaves behind."""
        keys = self.keys
        left = (keys.queue("pool"), keys.fence("pool"), keys.cancelled("pool"), keys.instances("pool"), keys.live)
        self.redis.eval(scripts.RETIRE.source, len(left), *left, "mine", "pool")
        ends: float | None = self.redis.zscore(keys.live, "pool/mine")
        return ends

    def unregister(self) -> None:
        """Leave the registry."""
        keys = self.keys
        service = (keys.instances("pool"), keys.queue("pool"), keys.fence("pool"), keys.cancelled("pool"))
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *service)
        self.redis.eval(scripts.UNREGISTER.source, len(tables), *tables, keys.prefix, "token", 60_000, 0, "pool/mine")

    def forget(self) -> None:
        """Do what a reap does with a dead consumer from which everything was taken."""
        self.redis.xgroup_delconsumer(self.keys.queue("pool"), "g", "mine")
        self.redis.hdel(self.keys.fence("pool"), "c:mine", "l:mine")


pytestmark = pytest.mark.anyio


@pytest.fixture
def registering(script_place: ScriptPlace) -> Registering:
    """A registry of the test's own."""
    return Registering(script_place)


async def test_a_forgotten_worker_comes_back_under_another_counter(registering: Registering) -> None:
    """A forgotten worker gets another counter, so that late answers to its earlier requests do not pass for answers to its own."""
    before = registering.register()
    assert registering.register() == before, "a repeated registration loses nothing"
    registering.forget()
    assert registering.register() != before


def test_a_worker_that_leaves_takes_its_lease_along(registering: Registering) -> None:
    """Unless it is still in the registry, since nobody could be told: then its lease runs out, and it is swept out of it."""
    registering.register()
    registering.unregister()
    assert registering.redis.zscore(registering.keys.live, "pool/mine") is not None, "what it still runs is its own"
    assert registering.retire() is None
    registering.register()
    assert registering.retire() is not None


def test_what_the_last_worker_leaves_waits_for_an_hour(registering: Registering) -> None:
    """Its beats prolong the queue while it leaves, and a request that no worker takes within an hour is past its use."""
    queue, fence = registering.keys.queue("pool"), registering.keys.fence("pool")
    registering.register()
    registering.redis.xadd(queue, {"r": "{}", "d": "1"})
    registering.unregister()
    for key in (queue, fence):
        registering.redis.pexpire(key, 86_400_000)
    registering.retire()
    assert [3_500_000 < registering.redis.pttl(key) <= 3_600_000 for key in (queue, fence)] == [True, True]
    registering.redis.delete(queue, fence)


@tool(service="pool", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@pytest.mark.parametrize("held", ["evil\nnosuch\n0", b"\xff\nno\nsuch\xff\n0", "evil\npool\n00"])
async def test_a_name_that_is_held_for_no_service_does_not_keep_a_worker_out(place: Place, held: str | bytes) -> None:
    """Nobody would ever give it up, and a registration that was lost could not be made again."""
    keys = Keys(place.settings.namespace)
    with redis.Redis.from_url(place.settings.url) as client:
        client.hset(keys.names, mapping=dict.fromkeys(("t:echo", "s:pool", "q:pool"), held))
        async with place.serving(echo) as bus:
            assert (await bus.call("echo", {"text": "one"}, timeout=5)).output == "one"


async def test_a_name_that_another_service_holds_is_refused(place: Place) -> None:
    """Its table or its row shows that it exists."""
    keys = Keys(place.settings.namespace)
    with redis.Redis.from_url(place.settings.url) as client:
        client.hset(keys.names, "t:echo", "evil\nother\n0")
        client.hset(keys.services, "other", "-{}")
        for key in (keys.names, keys.services):
            client.expire(key, 60)
        with pytest.raises(RegistrationRefused, match="tool/echo belongs to 'evil'"):
            async with place.worker(echo):
                pass


class Mapped(ToolService):
    """A service with a queue of another name."""

    id = "mapped"
    effect = "read"
    request_queue = "elsewhere"

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Answer."""
        return "here"


async def test_a_freed_service_may_be_anothers_with_its_queue(place: Place) -> None:
    """Within its cooldown a service belongs to who served it; an operator may free it, and its queue is free with it."""
    async with place.worker(Mapped, owner="first"):
        pass
    with pytest.raises(RegistrationRefused, match="tool-service/mapped belongs to 'first', queue/elsewhere belongs to 'first'"):
        async with place.worker(Mapped, owner="second"):
            pass
    async with Admin(place.settings) as admin:
        assert await admin.transfer("tool-service/mapped")
        assert not await admin.transfer("tool-service/mapped")
    async with place.serving(Mapped, owner="second") as bus:
        assert (await bus.service("mapped").call("al", {}, {}, timeout=5)).output == "here"
