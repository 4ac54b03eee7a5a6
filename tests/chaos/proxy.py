"""A TCP proxy that misbehaves on request: cuts at any byte, swallows replies, delays, and plays a dead network."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct

from tests.listening import Listening

_CHUNK = 65_536


class Pipe:
    """One client's connection through the proxy.

    Attributes:
        budget: bytes that may still pass before the connection is cut; None without end.
        mute: replies are read from the server and thrown away.
        dead: no byte passes any more and nobody is told.
    """

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = (client, server)
        self.budget: int | None = None
        self.mute = False
        self.dead = False

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        """Carry one direction's bytes until either side ends."""
        try:
            while data := await reader.read(_CHUNK):
                await self._proxy.passage(self)
                if replies and self.mute:
                    continue
                if self.budget is not None and len(data) >= self.budget:
                    writer.write(data[: self.budget])
                    break
                if self.budget is not None:
                    self.budget -= len(data)
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not self.dead:
            self.cut()

    def cut(self) -> None:
        """Reset both sides: what was on its way is lost."""
        for writer in self._writers:
            # uvloop says ValueError of a socket that is gone.
            with contextlib.suppress(OSError, AttributeError, ValueError):
                own: socket.socket = writer.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens on a loopback port of its own and passes everything on to a server's port, until told otherwise.

    With ``tls`` it speaks TLS to its clients; to the server it never does.
    """

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._listening = Listening(self._accept, tls=tls)
        self._pipes: set[Pipe] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._closed = asyncio.Event()
        self._latency = 0.0
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        await self._listening.start()
        self.port = self._listening.port

    async def aclose(self) -> None:
        """Cut everything and stop listening."""
        self._closed.set()
        await self._listening.aclose()

    @property
    def connections(self) -> int:
        """Return how many clients are connected now."""
        return len(self._pipes)

    # -- faults -----------------------------------------------------------------------------------

    def cut(self, share: float, *, chance: random.Random | None = None, within: int = 0) -> int:
        """Reset a share of the connections, each after up to ``within`` more bytes; returns how many."""
        chosen = self._some(share, chance)
        for pipe in chosen:
            if within and chance is not None:
                pipe.budget = chance.randrange(within)
            else:
                pipe.cut()
        return len(chosen)

    async def swallow(self, share: float, seconds: float, chance: random.Random) -> int:
        """Let requests through but no replies for a time, then reset; returns how many connections."""
        chosen = self._some(share, chance)
        for pipe in chosen:
            pipe.mute = True
        await asyncio.sleep(seconds)
        for pipe in chosen:
            pipe.cut()
        return len(chosen)

    async def delay(self, latency: float, seconds: float) -> int:
        """Hold each chunk back for ``latency`` seconds."""
        self._latency = latency
        await asyncio.sleep(seconds)
        self._latency = 0.0
        return len(self._pipes)

    async def partition(self, seconds: float, *, cut: bool) -> int:
        """Let nothing through for a time and tell nobody; then go on, or reset everything."""
        count = len(self._pipes)
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            if cut:
                self.cut(1.0)
            self._open.set()
        return count

    def half_open(self, count: int, chance: random.Random) -> int:
        """Never pass a byte of some connections again, and tell neither side."""
        pipes = sorted((pipe for pipe in self._pipes if not pipe.dead), key=id)
        chosen = chance.sample(pipes, min(count, len(pipes)))
        for pipe in chosen:
            pipe.dead = True
        return len(chosen)

    def heal(self) -> None:
        """End every fault that lasts."""
        self._latency = 0.0
        self._open.set()
        for pipe in [pipe for pipe in self._pipes if pipe.dead or pipe.mute]:
            pipe.cut()

    async def passage(self, pipe: Pipe) -> None:
        """Wait until a chunk of a connection may pass."""
        if self._latency:
            await asyncio.sleep(self._latency)
        await self._open.wait()
        if pipe.dead:
            await self._closed.wait()

    # -- inside -----------------------------------------------------------------------------------

    def _some(self, share: float, chance: random.Random | None) -> list[Pipe]:
        pipes = list(self._pipes)
        if chance is None or share >= 1.0:
            return pipes
        return [pipe for pipe in pipes if chance.random() < share]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pipe = Pipe(self, writer, server_writer)
        self._pipes.add(pipe)
        try:
            await asyncio.gather(
                pipe.pump(reader, server_writer, replies=False),
                pipe.pump(server_reader, writer, replies=True),
            )
        finally:
            pipe.cut()
            self._pipes.discard(pipe)
