"""Servers that drop connections while a process starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract import Place
from tests.listening import Listening
from tests.servers import eventually
from toolbus import ToolBus, Worker, tool
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

HERE = """from toolbus import tool

@tool(service="starting", effect="read")
async def here() -> str:
    \"\"\"Be there.\"\"\"
    return "here"
"""


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
    async with Listening(made.serve) as listening:
        made.url = f"redis://127.0.0.1:{listening.port}"
        yield made


@pytest.mark.parametrize("word", [b"SCRIPT", b"EVALSHA", b"HSCAN"])
async def test_an_agent_outlives_dropped_connections_at_its_start(place: Place, word: bytes) -> None:
    """It tries again for as long as a call may take, and then works."""
    async with place.worker(here), dropping(place, word, 3) as way:
        async with place.bus(url=way.url) as bus:
            assert (await bus.call("here", wait=10.0)).output == "here"
        assert way.left == 0


@pytest.mark.parametrize("word", [b"SCRIPT", b"TIME", b"EVALSHA"])
async def test_a_worker_outlives_dropped_connections_at_its_start(place: Place, word: bytes) -> None:
    """It tries again until it is told to stop."""
    async with dropping(place, word, 5) as way, place.bus() as bus, place.worker(here, url=way.url):
        assert (await bus.call("here", wait=10.0)).output == "here"
        assert way.left == 0


async def test_an_agent_gives_up_after_its_timeout(place: Place) -> None:
    """A server that always drops it is told after a call's time, in one line."""
    async with dropping(place, b"SCRIPT", float("inf")) as way:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="can't reach"):
            await ToolBus(settings=place.with_(url=way.url, timeout=1.0)).open()
        assert 0.5 < time.monotonic() - began < 15.0
        assert way.dropped > 1


async def test_a_server_that_never_answered_is_told_at_once(place: Place) -> None:
    """It may not be there, or be none of ours, and waiting would hide that."""
    async with dropping(place, b"\r\n", float("inf")) as way:
        for opening in (ToolBus(settings=place.with_(url=way.url)).open, Worker([here], settings=place.with_(url=way.url)).run):
            with pytest.raises(BrokerUnavailable, match="can't reach"):
                await asyncio.wait_for(opening(), 5)


async def test_a_signal_ends_a_worker_that_waits_for_its_server(place: Place) -> None:
    """It returns as it does after a drain, without having served."""
    async with dropping(place, b"SCRIPT", float("inf")) as way:
        worker = Worker([here], settings=place.with_(url=way.url))
        running = asyncio.create_task(worker.run())
        await eventually(lambda: way.dropped > 2)
        assert not running.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 5)


async def test_a_worker_with_patience_waits_for_a_server_that_was_never_there(place: Place) -> None:
    """It serves as soon as there is one."""
    way = Dropping(place.settings.url, b"", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with place.bus() as bus:
        worker = Worker([here], settings=place.with_(url=f"redis://127.0.0.1:{port}", connect_timeout=30.0))
        running = asyncio.create_task(worker.run())
        assert (await bus.call("here", wait=0.3)).error is not None
        assert not running.done()
        async with Listening(way.serve, port):
            assert (await bus.call("here", wait=20.0)).output == "here"
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, 10)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("command", ["worker", "serve", "platform host", "platform im"])
async def test_commands_that_serve_wait_for_a_server_that_restarts(place: Place, command: str, tmp_path: Path) -> None:
    """They say so in one line, and end with the error when the time is over; a name that does not exist ends them at once."""
    (tmp_path / "here_tool.py").write_text(HERE)
    words = [*command.split(), *{"worker": ["here_tool.py"], "serve": ["--port", "0"]}.get(command, [])]
    variables = {**os.environ, "TOOLBUS_IM_SERVER": "ws://127.0.0.1:1", "TOOLBUS_IM_CONTACT": "me", "TOOLBUS_LOG_FORMAT": "json"}

    async def run(url: str, *more: str) -> tuple[str, float]:
        began = time.monotonic()
        line = [sys.executable, "-m", "toolbus", "--url", url, *more, *words]
        made = await asyncio.create_subprocess_exec(*line, env=variables, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(made.communicate(), 30)
        assert made.returncode == 1, said
        return said.decode(), time.monotonic() - began

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said, seconds = await run(f"redis://127.0.0.1:{port}", "--connect-timeout", "2")
    assert said.count("open.interrupted") == 1
    assert seconds > 1.0
    assert f"can't reach redis://127.0.0.1:{port}" in said.splitlines()[-1]
    said, seconds = await run("redis://no-such-host.invalid:6379", "--connect-timeout", "600")
    assert "open.interrupted" not in said
    assert "can't reach redis://no-such-host.invalid" in said


async def test_a_worker_outlasts_the_restart_of_its_server(fresh_server: Callable[..., EmbeddedServer], tmp_path: Path) -> None:
    """Started while the server is down, with the defaults of the command, it serves as soon as the server is up."""
    (tmp_path / "here_tool.py").write_text(HERE)
    server = fresh_server(appendonly=True)
    server.kill()
    line = [sys.executable, "-m", "toolbus", "--url", server.url, "worker", "here_tool.py"]
    made = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    assert made.stderr is not None
    while b"open.interrupted" not in await asyncio.wait_for(made.stderr.readline(), 20):
        assert made.returncode is None
    server.start()
    async with ToolBus(server.url) as bus:
        assert (await bus.call("here", wait=20.0)).output == "here"
    made.terminate()
    await asyncio.wait_for(made.communicate(), 20)
    assert made.returncode == 0


@pytest.mark.usefixtures("slow")
async def test_the_patience_of_a_worker_ends(place: Place) -> None:
    """It does so for servers that have answered, and for those that have not."""
    async with dropping(place, b"SCRIPT", float("inf")) as way:
        for url in (way.url, "redis://127.0.0.1:1"):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="can't reach"):
                await asyncio.wait_for(Worker([here], settings=place.with_(url=url, connect_timeout=1.0)).run(), 20)
            assert 0.5 < time.monotonic() - began < 15.0
