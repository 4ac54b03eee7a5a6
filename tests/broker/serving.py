"""A server on loopback that does as a test says, with a link to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import pytest

from tests.listening import Listening
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.link import Link

Answer = Callable[[list[bytes]], bytes | None]
"""What the server says to a command, as it goes over the wire; None says nothing."""

_GREETING = {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"CLIENT": b":7\r\n", b"SCRIPT": b"+sha\r\n"}


class Server:
    """A server on loopback that greets as a real one does, and answers the rest as the test says."""

    def __init__(self) -> None:
        self.answer: Answer = lambda command: b"+OK\r\n"
        self.seen: list[list[bytes]] = []
        self.run_id = "one"
        self.subscriptions = 0
        self.subscribed = b">3\r\n+subscribe\r\n+channel\r\n:1\r\n"
        self.connections: set[asyncio.StreamWriter] = set()
        self.accepted = 0

    @property
    def names(self) -> list[str]:
        """The commands that were not part of a greeting, by name."""
        return [command[0].decode() for command in self.seen]

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port."""
        self._listening = await Listening(self._serve, host=host).start()
        self.port = self._listening.port
        self.url = f"redis://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close everything."""
        await self._listening.aclose()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self.connections):
            writer.transport.abort()

    def say(self, text: bytes) -> None:
        """Send something that nobody asked for."""
        for writer in self.connections:
            writer.write(text)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        self.accepted += 1
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    writer.write(self._reply(command))
        except ConnectionError:
            pass
        finally:
            self.connections.discard(writer)

    def _reply(self, command: list[bytes]) -> bytes:
        if command[1:] == [b"key"]:
            # No greeting has it.
            self.seen.append(command)
            return self.answer(command) or b""
        if command[0] == b"INFO":
            text = f"redis_version:7.4.0\r\nrun_id:{self.run_id}\r\nrole:master\r\n".encode()
            return b"$%d\r\n%b\r\n" % (len(text), text)
        if command[0] == b"SUBSCRIBE":
            self.subscriptions += 1
            return self.subscribed
        if command[0] in _GREETING:
            return _GREETING[command[0]]
        self.seen.append(command)
        return self.answer(command) or b""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that runs."""
    made = Server()
    await made.start()
    yield made
    await made.stop()


@asynccontextmanager
async def linked(server: Server) -> AsyncIterator[Link]:
    """A connected link that reconnects by itself; its pushes are kept in ``link.heard``."""
    heard: list[Any] = []
    made = Link(Connector(server.url), on_push=heard.append, limit=10_000)
    made.heard = heard  # type: ignore[attr-defined]
    await made.connect()
    upkeep = asyncio.create_task(made.maintain())
    try:
        yield made
    finally:
        made.close()
        await upkeep


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    """A link to the test's server."""
    async with linked(server) as made:
        yield made


def silent(_: list[bytes]) -> None:
    """Answer nothing."""
    return
