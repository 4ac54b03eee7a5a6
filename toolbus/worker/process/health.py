"""Health for probes: a file that is fresh, or a port that answers, while the worker can serve."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

_EVERY = 2.0
_REQUEST_LIMIT = 8192


class ProbedWorker(Protocol):
    """A worker, as far as its health is concerned."""

    @property
    def healthy(self) -> bool:
        """True while the worker can serve."""

    @property
    def instance(self) -> str:
        """Its id."""

    def statistics(self) -> dict[str, int]:
        """Return its counts."""


def report(worker: ProbedWorker) -> dict[str, Any]:
    """Return what a probe reads."""
    if not worker.healthy:
        return {"healthy": False, "time": time.time()}
    return {"healthy": True, "instance": worker.instance, "time": time.time(), **worker.statistics()}


async def keep_file(worker: ProbedWorker, path: Path) -> None:
    """Write the report to a file every two seconds while the worker is healthy; remove it when it is not, and at the end."""
    try:
        while True:
            _write(path, msgspec.json.encode(report(worker)) if worker.healthy else None)
            await asyncio.sleep(_EVERY)
    finally:
        _write(path, None)


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    # Renamed into place, so that a probe never reads half of it.
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


async def serve_port(worker: ProbedWorker, port: int) -> None:
    """Answer any HTTP request on this port of the loopback interface: 200 while healthy, else 503.

    Raises:
        OSError: the port is taken.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                body = msgspec.json.encode(report(worker))
                status = b"200 OK" if worker.healthy else b"503 Service Unavailable"
                head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                writer.write(head % (status, len(body)) + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=_REQUEST_LIMIT)
    async with server:
        await server.serve_forever()
