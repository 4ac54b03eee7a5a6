"""A proxy before a server that exchanges chosen answers for others, by the name of the command or script that they answer."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

import hiredis

from tests.listening import Listening
from toolbus.bus.broker.server import scripts

_SCRIPTS = {script.sha.encode(): script.name for script in scripts.ALL}
_SOURCES = {script.source.encode(): script.name for script in scripts.ALL}
_NESTED = {b"*": 1, b"~": 1, b">": 1, b"%": 2}


def name_of(command: list[bytes]) -> str:
    """Return a command's name, or that of the script that it runs."""
    verb = command[0].upper()
    if verb == b"EVALSHA":
        return _SCRIPTS[command[1].lower()]
    return _SOURCES[command[1]] if verb == b"EVAL" else verb.decode()


class Liar:
    """Passes everything on to the server at a port; each command is carried out, whatever its client hears of it.

    Attributes:
        lies: what is said next in place of the answers to a command, by name.
        told: how often each was lied about.
        seen: how often each was asked.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.lies: dict[str, deque[bytes]] = {}
        self.told: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    async def start(self) -> None:
        """Listen on a free port."""
        self._listening = await Listening(self._accept).start()
        self.port = self._listening.port

    async def stop(self) -> None:
        """Stop listening, and cut what is open."""
        await self._listening.aclose()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=2**26)
        asked: deque[str] = deque()
        both = [
            asyncio.create_task(self._requests(reader, server_writer, asked)),
            asyncio.create_task(self._replies(server_reader, writer, asked)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            server_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[str]) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                name = name_of(command)
                self.seen[name] += 1
                # Its answer is a push.
                if name != "SUBSCRIBE":
                    asked.append(name)
            writer.write(data)

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[str]) -> None:
        while True:
            reply = await _reply(reader)
            if reply[:1] != b">":
                name = asked.popleft()
                if self.lies.get(name):
                    reply = self.lies[name].popleft()
                    self.told[name] += 1
            writer.write(reply)


async def _reply(reader: asyncio.StreamReader) -> bytes:
    """Return one whole reply as it came."""
    line = await reader.readuntil(b"\r\n")
    kind, size = line[:1], line[1:-2]
    if kind in {b"$", b"=", b"!"} and size != b"-1":
        return line + await reader.readexactly(int(size) + 2)
    if kind in _NESTED and size != b"-1":
        return line + b"".join([await _reply(reader) for _ in range(int(size) * _NESTED[kind])])
    return line
