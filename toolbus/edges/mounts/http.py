"""Speak with an MCP server at an address; answers are bounded, and secrets are read for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from toolbus.edges.mounts.options import Address

# Seconds for a connection and for sending; an answer may take as long as the call.
_CONNECT = 15.0


@asynccontextmanager
async def http(address: Address, most_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the streams of a connection to a server.

    Args:
        address: where it is.
        most_bytes: bytes of one answer or event.

    Raises:
        ConfigurationError: a header's value can't be read.
    """

    async def fill_in(request: httpx2.Request) -> None:
        for name, source in address.headers.items():
            request.headers[name] = source if isinstance(source, str) else source.value()

    def client(headers: dict[str, str] | None = None, timeout: object = None, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:  # noqa: ARG001
        return httpx2.AsyncClient(
            headers=headers,
            auth=auth,
            timeout=httpx2.Timeout(_CONNECT, read=None),
            transport=_Bounded(most_bytes),
            event_hooks={"request": [fill_in]},
        )

    for source in address.headers.values():
        if not isinstance(source, str):
            source.value()
    if address.transport == "sse":
        async with sse_client(address.url, httpx_client_factory=client) as streams:
            yield streams[0], streams[1]
        return
    async with client() as made, streamable_http_client(address.url, http_client=made, max_sse_event_size=most_bytes) as streams:
        yield streams[0], streams[1]


class _Bounded(httpx2.AsyncHTTPTransport):
    """Ends a body that is longer than a message may be; a stream of events has no end, and each event is bounded by its reader."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream, self._most)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.StreamError(f"the answer has more than {self._most:,} bytes, so it was not read")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
