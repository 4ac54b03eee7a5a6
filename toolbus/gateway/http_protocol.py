"""Speak HTTP with clients that may be slow: a request's headers must arrive in time, and be few."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_WITHIN = 15.0
"""Seconds within which the headers of a request must have arrived; a new connection counts from its beginning."""

MOST_HEADERS = 32_768
"""Bytes of a request's first line and headers."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class GuardedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which closes connections whose headers take too long or are too large."""

    headers_within = HEADERS_WITHIN
    most_headers = MOST_HEADERS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: asyncio.TimerHandle | None = None
        self._head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, whose first request must come in time."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes in, but not endless headers."""
        if self._waiting is not None:
            self._head += len(data)
        super().data_received(data)
        # The headers that have arrived by now are handed on; what came with them in one piece may be the body.
        if self._waiting is not None and self._head > self.most_headers and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._waiting is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """Hand a request on."""
        self._arrived()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._head = 0
        self._waiting = self.loop.call_later(self.headers_within, self._too_late)

    def _arrived(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_late(self) -> None:
        self._waiting = None
        self.transport.close()

    def _refuse(self) -> None:
        self._arrived()
        self.transport.write(_TOO_LARGE)
        self.transport.close()
