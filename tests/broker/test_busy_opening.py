"""A server whose script runs too long is waited for when an agent or a worker opens."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from tests.contract import plugged
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

WITHIN = 60


@contextmanager
def busy(url: str) -> Iterator[redis.Redis]:
    """A script that runs until it is killed; yields a client that can kill it."""
    with redis.Redis.from_url(url) as client, redis.Redis.from_url(url, socket_timeout=None) as other:
        client.config_set("busy-reply-threshold", 1)

        def loop() -> None:
            with suppress(redis.RedisError):
                other.eval("while true do end", 0)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield client
        finally:
            with suppress(redis.RedisError):
                client.execute_command("SCRIPT", "KILL")
            thread.join(WITHIN)


def is_busy(client: redis.Redis) -> bool:
    """Return true while the server refuses commands."""
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


@pytest.mark.parametrize("opened", ["agent", "worker"])
async def test_opening_waits_for_a_busy_server(opened: str, caplog: pytest.LogCaptureFixture) -> None:
    """An agent and a worker open once the script is killed, and say meanwhile what they wait for."""
    caplog.set_level(logging.WARNING, "toolbus")
    with EmbeddedServer() as server, busy(server.url) as client:
        await eventually(lambda: is_busy(client), timeout=WITHIN)
        settings = Settings.load({}, url=server.url, namespace="busy", timeout=WITHIN)
        one = ToolBus(settings=settings) if opened == "agent" else Worker([plugged], settings=settings)
        opening = asyncio.create_task(one.open())
        await eventually(lambda: opening.done() or "waiting for the script to end" in caplog.text, timeout=WITHIN)
        assert not opening.done()
        client.execute_command("SCRIPT", "KILL")
        async with asyncio.timeout(WITHIN):
            await opening
        await one.aclose()


async def test_opening_gives_a_busy_server_up_in_time() -> None:
    """An agent whose time is over says that the server is busy with a script."""
    with EmbeddedServer() as server, busy(server.url) as client:
        await eventually(lambda: is_busy(client), timeout=WITHIN)
        with pytest.raises(BrokerUnavailable, match=r"BUSY .*waiting for the script to end"):
            await ToolBus(settings=Settings.load({}, url=server.url, namespace="busy", timeout=0.3)).open()
