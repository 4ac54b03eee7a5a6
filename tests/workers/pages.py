"""Local Web servers for the tests of the network tools: honest ones, and ones that mean harm."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from toolbus_workers.web.fetch import FetchService, Limits

from tests.listening import Listening
from toolbus.bus.outbound import Guard


class Asked(NamedTuple):
    """A request as a server got it."""

    target: str
    headers: Mapping[str, str]


Respond = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Site(NamedTuple):
    """A running server.

    Attributes:
        asked: the requests it got, in order.
    """

    port: int
    asked: list[Asked]

    def url(self, target: str = "/", host: str = "127.0.0.1") -> str:
        """Return an address on this server."""
        return f"http://{host}:{self.port}{target}"


def answer(body: bytes | str = b"", *headers: str, status: int = 200, media_type: str | None = "text/html") -> bytes:
    """Return a whole response."""
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    if media_type is not None:
        lines.append(f"Content-Type: {media_type}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    """Return a response that redirects."""
    return answer(b"", f"Location: {location}", status=status)


@asynccontextmanager
async def site(
    respond: Respond | bytes | Mapping[str, bytes], *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """Run a server that answers every request with the same bytes, by its path, or as ``respond`` does."""
    asked: list[Asked] = []

    async def write(request: Asked, writer: asyncio.StreamWriter) -> None:
        if callable(respond):
            await respond(request, writer)
        elif isinstance(respond, bytes):
            writer.write(respond)
        else:
            writer.write(respond.get(request.target) or answer("nothing here", status=404))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            request = Asked(head[0].split()[1], dict(line.lower().split(": ", 1) for line in head[1:] if line))
            asked.append(request)
            await write(request, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went away, as it should when it has been sent enough

    async with Listening(serve, port, host=host, tls=tls) as listening:
        yield Site(listening.port, asked)


def names(**hosts: str | list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Return a resolver for names with ``_`` for the dot; each look-up takes the next answer of a list. Addresses resolve to themselves."""

    async def resolve(host: str, port: int) -> list[str]:
        found = hosts.get(host.replace(".", "_"), host)
        if isinstance(found, list):
            found = found.pop(0)
        return found.split()

    return resolve


def local(
    *,
    allow: tuple[str, ...] = ("127.0.0.1/32", "::1/128"),
    resolve: Callable[[str, int], Awaitable[list[str]]] | None = None,
    tls: ssl.SSLContext | None = None,
    **limits: float,
) -> FetchService:
    """Return a service that may fetch from this machine."""
    return FetchService(Guard(allow=allow, resolve=resolve or names()), limits=Limits(**limits), tls=tls)
