"""A blocking socket whose exchanges end in time and within bounds, however the other side answers."""

from __future__ import annotations

import socket
import time
from typing import Any

_MOST_RECEIVED = 64 * 1024 * 1024


class BoundedSocket:
    """A connected socket on which an answer has a time limit as a whole.

    A plain one limits each read, so that a byte now and then keeps its reader waiting for ever. Here the time until the next write counts
    together, and so do the bytes; whatever is not redefined is the socket's own.

    Args:
        sock: with a timeout, which becomes that of each exchange.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeout = sock.gettimeout()
        self._until = 0.0
        self._received = 0
        self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def gettimeout(self) -> float | None:
        """Return the seconds that an exchange may take."""
        return self._timeout

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds that an exchange may take, beginning now."""
        self._timeout = seconds
        self._begin()

    def sendall(self, data: Any) -> None:
        """Begin an exchange by writing.

        Raises:
            TimeoutError: the other side does not take it in time.
        """
        self._begin()
        self._sock.settimeout(self._timeout)
        self._sock.sendall(data)

    def recv(self, size: int, *flags: int) -> bytes:
        """Read some bytes, as ``recv_into`` does."""
        self._limit()
        data = self._sock.recv(size, *flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: Any) -> int:
        """Read some bytes into a buffer.

        Raises:
            TimeoutError: the time of the exchange is up.
            ConnectionError: the answer is too long.
        """
        self._limit()
        size = self._sock.recv_into(buffer)
        self._count(size)
        return size

    def _begin(self) -> None:
        self._until = float("inf") if self._timeout is None else time.monotonic() + self._timeout
        self._received = 0

    def _limit(self) -> None:
        if not self._timeout:
            self._sock.settimeout(self._timeout)
            return
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > _MOST_RECEIVED:
            raise ConnectionError(f"the answer is longer than {_MOST_RECEIVED} bytes")
