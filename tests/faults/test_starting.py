"""Servers that drop connections while a process starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, Worker, tool
from toolbus.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


@tool(service="starting", effect="read")
async def here() -> str:
    """Be there."""
    return "here"


class Dropping:
    """Passes everything on to a server, but drops so many connections at the first request that has a word in it."""

    def __init__(self, url: str, word: bytes, times: float) -> None:
        self._target = int(url.rpartition(":")[2])
        self._word = word
        self.left = times
        self.dropped = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        replies = asyncio.create_task(self._carry(there, writer))
        try:
            while data := await reader.read(65_536):
                if self._word in data and self.left > 0:
                    self.left -= 1
                    self.dropped += 1
                    break
                back.write(data)
        except ConnectionError:
            pass
        finally:
            replies.cancel()
            writer.transport.abort()
            back.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def dropping(place: Place, word: bytes, times: float) -> AsyncIterator[Dropping]:
    """A way to the place's server that drops connections."""
    made = Dropping(place.settings.url, word, times)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


@pytest.mark.parametrize("word", [b"SCRIPT", b"EVALSHA", b"HSCAN"])
async def test_an_agent_outlives_dropped_connections_at_its_start(redis_place: Place, word: bytes) -> None:
    """It tries again for as long as a call may take, and then works."""
    async with redis_place.worker(here), dropping(redis_place, word, 3) as way:
        async with redis_place.bus(url=way.url) as bus:
            assert (await bus.call("here", wait=10.0)).output == "here"
        assert way.left == 0


@pytest.mark.parametrize("word", [b"SCRIPT", b"TIME", b"EVALSHA"])
async def test_a_worker_outlives_dropped_connections_at_its_start(redis_place: Place, word: bytes) -> None:
    """It tries again until it is told to stop."""
    async with dropping(redis_place, word, 5) as way, redis_place.bus() as bus, redis_place.worker(here, url=way.url):
        assert (await bus.call("here", wait=10.0)).output == "here"
        assert way.left == 0


async def test_an_agent_gives_up_after_its_timeout(redis_place: Place) -> None:
    """A server that always drops it is told after a call's time, in one line."""
    async with dropping(redis_place, b"SCRIPT", float("inf")) as way:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="can't reach"):
            await ToolBus(settings=redis_place.with_(url=way.url, timeout=1.0)).open()
        assert 0.5 < time.monotonic() - began < 15.0
        assert way.dropped > 1


async def test_a_server_that_never_answered_is_told_at_once(redis_place: Place) -> None:
    """It may not be there, or be none of ours, and waiting would hide that."""
    async with dropping(redis_place, b"\r\n", float("inf")) as way:
        for opening in (ToolBus(settings=redis_place.with_(url=way.url)).open, Worker([here], settings=redis_place.with_(url=way.url)).run):
            with pytest.raises(BrokerUnavailable, match="can't reach"):
                await asyncio.wait_for(opening(), 5)


async def test_a_signal_ends_a_worker_that_waits_for_its_server(redis_place: Place) -> None:
    """It returns as it does after a drain, without having served."""
    async with dropping(redis_place, b"SCRIPT", float("inf")) as way:
        worker = Worker([here], settings=redis_place.with_(url=way.url))
        running = asyncio.create_task(worker.run())
        await eventually(lambda: way.dropped > 2)
        assert not running.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 5)


async def test_a_worker_with_patience_waits_for_a_server_that_was_never_there(redis_place: Place) -> None:
    """It serves as soon as there is one."""
    way = Dropping(redis_place.settings.url, b"", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with redis_place.bus() as bus:
        worker = Worker([here], settings=redis_place.with_(url=f"redis://127.0.0.1:{port}", start_patience=30.0))
        running = asyncio.create_task(worker.run())
        assert (await bus.call("here", wait=0.3)).error is not None
        assert not running.done()
        server = await asyncio.start_server(way.serve, "127.0.0.1", port)
        assert (await bus.call("here", wait=20.0)).output == "here"
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 10)
        server.close()


async def test_the_patience_of_a_worker_ends(redis_place: Place) -> None:
    """It does so for servers that have answered, and for those that have not."""
    async with dropping(redis_place, b"SCRIPT", float("inf")) as way:
        for url in (way.url, "redis://127.0.0.1:1"):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="can't reach"):
                await asyncio.wait_for(Worker([here], settings=redis_place.with_(url=url, start_patience=1.0)).run(), 20)
            assert 0.5 < time.monotonic() - began < 15.0
