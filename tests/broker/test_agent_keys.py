"""Keys that an agent and an operator leave on the server, whenever they are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis

from tests.contract import Place
from toolbus.bus.broker.admin import Admin

pytestmark = pytest.mark.anyio


async def seen_by(place: Place, work: Callable[[], Awaitable[None]]) -> list[dict[str, str]]:
    """The commands that write to keys of the place while something is done."""
    with redis.Redis.from_url(place.settings.url, decode_responses=True) as client, client.monitor() as monitor:
        await work()
        client.echo("over")
        seen: list[dict[str, str]] = []
        while True:
            command = await asyncio.to_thread(monitor.next_command)
            if command["command"].startswith("ECHO over"):
                return [each for each in seen if f"{{{place.settings.namespace}}}" in each["command"]]
            seen.append(command)


async def test_keys_are_made_together_with_their_ttl(place: Place) -> None:
    """A connection may be lost between any two commands: what makes a key sets its TTL, in one script."""

    async def work() -> None:
        async with place.bus(), Admin(place.settings) as admin:
            await admin.pause("anything")

    made = [each for each in await seen_by(place, work) if each["command"].startswith(("XADD", "SADD", "HSET", "SET ", "ZADD"))]
    assert {each["command"].split()[0] for each in made} == {"XADD", "SADD"}
    assert {each["client_type"] for each in made} == {"lua"}
