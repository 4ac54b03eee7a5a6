"""Answer the HTTP probes of a process: whether it lives, has started and is ready; its report and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from toolbus.telemetry.exposition import MEDIA_TYPE

_REQUEST_LIMIT = 8192
_MOST_CLIENTS = 64
_PATIENCE = 5.0
_JSON = "application/json"
_STATUS = {200: b"200 OK", 404: b"404 Not Found", 405: b"405 Method Not Allowed", 503: b"503 Service Unavailable"}


class Probed(Protocol):
    """A process, as far as probes are concerned."""

    @property
    def started(self) -> bool:
        """True once it has served."""

    async def ready(self) -> bool:
        """Return whether it takes requests now."""

    async def report(self) -> object:
        """Return its counts, as a value that can be written as JSON."""

    async def metrics(self) -> str:
        """Return its metrics in the text format of Prometheus."""


@contextlib.asynccontextmanager
async def probes(probed: Probed, host: str, port: int) -> AsyncIterator[int]:
    """Answer probes at an address, and yield the port; for port 0, a free one is chosen.

    ``/live`` answers as long as the event loop runs; ``/startup`` and ``/ready`` answer 503 until they hold. Of too many clients that
    send nothing, the first ones are dropped.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    clients: dict[asyncio.StreamWriter, None] = {}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= _MOST_CLIENTS:
            oldest = next(iter(clients))
            del clients[oldest]
            oldest.transport.abort()
        clients[writer] = None
        try:
            await _reply(probed, reader, writer)
        finally:
            clients.pop(writer, None)
            # One that does not read its answer would keep the descriptor.
            writer.transport.abort()

    server = await asyncio.start_server(accept, host, port, limit=_REQUEST_LIMIT)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1]
    finally:
        for client in list(clients):
            client.transport.abort()


async def _reply(probed: Probed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE):
            request = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            path = rest.partition(" ")[0].partition("?")[0]
            status, kind, body = await _answer(probed, method, path)
            head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (_STATUS[status], kind.encode(), len(body)) + (b"" if method == "HEAD" else body))
            await writer.drain()
            writer.close()
            await writer.wait_closed()


async def _answer(probed: Probed, method: str, path: str) -> tuple[int, str, bytes]:
    """Return the status, the media type and the body of an answer."""
    if method not in {"GET", "HEAD"}:
        return _said(405, {"error": "ask with GET"})
    match path:
        case "/live":
            return _said(200, {"live": True})
        case "/startup":
            return _said(200 if probed.started else 503, {"started": probed.started})
        case "/ready":
            ready = await probed.ready()
            return _said(200 if ready else 503, {"ready": ready})
        case "/metrics":
            return 200, MEDIA_TYPE, (await probed.metrics()).encode()
        case "/":
            return _said(200 if await probed.ready() else 503, await probed.report())
        case _:
            return _said(404, {"error": "there are /live, /startup, /ready, /metrics, and / with all counts"})


def _said(status: int, about: Any) -> tuple[int, str, bytes]:
    return status, _JSON, msgspec.json.encode(about)
