"""Connect to servers that may be hostile: what they send is read in small pieces, and no more than a page needs of them."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpcore
import httpx

# Bytes that are parsed before other tasks have a turn: of the smallest pieces, a server can put hundreds into each KB.
_AT_ONCE = 4_096
# Bytes of the headers, with all interim answers before them.
MOST_HEADERS = 262_144


class Transport(httpx.AsyncHTTPTransport):
    """Sends one request. ``received_headers`` says that its headers have come, and that a body may follow."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._counted = _Counted()
        # Httpx has no parameter for it. Without TLS no context is needed, which takes long to make.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify if isinstance(verify, ssl.SSLContext) else None, network_backend=_Network(self._counted)
        )

    def received_headers(self) -> None:
        """Stop counting."""
        self._counted.left = None


class _Counted:
    """Bytes that may still come; None when they are not counted."""

    def __init__(self) -> None:
        self.left: int | None = MOST_HEADERS


class _Network(httpcore.AsyncNetworkBackend):
    def __init__(self, counted: _Counted) -> None:
        self._backend = httpcore.AnyIOBackend()
        self._counted = counted

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._backend.connect_tcp(*args, **options), self._counted)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, counted: _Counted) -> None:
        self._stream = stream
        self._counted = counted

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # What has arrived is read without waiting, so others must be given their turn.
        await asyncio.sleep(0)
        data = await self._stream.read(min(max_bytes, _AT_ONCE), timeout)
        counted = self._counted
        if counted.left is not None:
            counted.left -= len(data)
            if counted.left < 0:
                raise httpcore.RemoteProtocolError("too many bytes before the body")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._counted)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
