"""Speak HTTP with clients that may be slow: a request must arrive in time, and its headers be few."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_WITHIN = 15.0
"""Seconds within which the headers of a request must have arrived; a new connection counts from its beginning."""

MOST_HEADERS = 32_768
"""Bytes of a request's first line and headers, and of what may come between two parts of its body or after the last."""

BODY_WITHIN = 60.0
"""Seconds within which a request must be whole; the application, which answers slow bodies itself, waits for less."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
# Bytes around the name and the value of a header in its line.
_AROUND = 4


def _authority_of(url: bytes) -> bytes:
    """Return the authority of a request's target in absolute form; empty for a path."""
    return b"" if url.startswith(b"/") else url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].lower()


class GuardedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which closes connections whose requests take too long or have too large headers.

    Trailers, which may follow a chunked body, are dropped: nothing reads them.
    """

    headers_within = HEADERS_WITHIN
    most_headers = MOST_HEADERS
    body_within = BODY_WITHIN

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._in_body = False
        self._is_refused = False
        # Bytes received since the request, its headers or a part of its body.
        self._taken = 0
        self._head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, whose first request must come in time."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._arrived()
        self._ended()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes in, but not endless headers or trailers."""
        self._taken += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_refused:
            self._refuse()
        elif self._in_body:
            if self._taken > self.most_headers:
                self.transport.close()
            elif self._ending is None:
                self._ending = self.loop.call_later(self.body_within, self._not_whole)
        elif self._waiting is not None and self._taken > self.most_headers:
            self._refuse()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._waiting is None:
            self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it comes after the headers."""
        if not self._in_body:
            self._head += len(name) + len(value) + _AROUND
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand a request on."""
        self._arrived()
        self._in_body, self._taken = True, 0
        self._is_refused = self._is_refused or self._head + len(self.url) > self.most_headers
        if not self._is_refused:
            authority = _authority_of(self.url)
            # Another authority than the Host header's is a second host, which the guards refuse.
            if authority and (b"host", authority) not in [(name, value.lower()) for name, value in self.headers]:
                self.headers.append((b"host", authority))
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand a part of a body on."""
        self._taken = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, which is whole."""
        self._ended()
        if not self._is_refused:
            super().on_message_complete()

    def _wait(self) -> None:
        self._head = self._taken = 0
        self._waiting = self.loop.call_later(self.headers_within, self._too_late)

    def _arrived(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _ended(self) -> None:
        self._in_body = False
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _too_late(self) -> None:
        self._waiting = None
        self.transport.close()

    def _not_whole(self) -> None:
        self._ending = None
        if self.flow.read_paused:
            # The rest may be here already, and waits for an earlier request.
            self._ending = self.loop.call_later(self.body_within, self._not_whole)
        else:
            self.transport.close()

    def _refuse(self) -> None:
        self._arrived()
        # An answer to an earlier request that is on its way must not be mixed with this one.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_TOO_LARGE)
        self.transport.close()
