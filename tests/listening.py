"""Servers on loopback for tests, of which no connection is left when they end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, which is closed when it returns."""


class Listening:
    """Listens on a port and serves each connection by a task of its own.

    asyncio's server forgets its connections when it ends: a task that is cancelled later, or never begins, leaves its socket open, and
    the test that runs next is blamed.

    Args:
        serve: what it raises is raised by ``aclose``.
        port: 0 takes a free one.

    Attributes:
        port: on which it listens, once it does.
    """

    def __init__(self, serve: Serve, port: int = 0, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._host = host
        self._tls = tls
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._failures: list[Exception] = []
        self.port = port

    async def start(self) -> Self:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host, self.port), family=family, backlog=512)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)
        return self

    async def aclose(self) -> None:
        """Stop listening, reset what is open, and wait until each task has ended; do nothing the second time."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        left = dict(self._connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # For transports, which close their sockets in the turn after they were told to.
        await asyncio.sleep(0)
        for connection in left.values():
            connection.close()
        if self._failures:
            raise self._failures[0]

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Its client is gone again.
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._run(connection))
        self._connections[task] = connection
        task.add_done_callback(self._ended)

    async def _run(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        except OSError:
            # The client does not speak TLS, or does not trust the certificate.
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            await self._serve(reader, writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            transport.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failures.append(error)
