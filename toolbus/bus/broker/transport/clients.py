"""The one place that makes redis-py's connections and clients. None of them tries anything again: that is for their users to decide."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio as aredis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

CONNECT_TIMEOUT = 3.0
"""Seconds for a TCP connection and its TLS handshake, one lost packet included."""


# A connection says nothing of its library: no role may, and each refusal is a line of the server's `ACL LOG`.
_NO_LIBRARY = {"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}
# One that has read nothing looks dirty to redis-py when TLS tickets have come: protocol 3 reads its greeting, 2 the answer to this.
# redis-py would look its own version up in a file for each one, which takes longer than to connect.
_LIBRARY = {"driver_info": redis.DriverInfo()} if hasattr(redis, "DriverInfo") else {}


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


def _bounded(kind: Any) -> Any:
    class Bounded(kind):  # type: ignore[misc]
        """A connection with a time limit for each answer as a whole."""

        def _connect(self) -> BoundedSocket:
            return BoundedSocket(super()._connect())

    return Bounded


_SYNCHRONOUS: dict[Any, Any] = {
    aredis.Connection: _bounded(redis.Connection),
    aredis.SSLConnection: _bounded(redis.SSLConnection),
    aredis.UnixDomainSocketConnection: _bounded(redis.UnixDomainSocketConnection),
}


def connection(options: Mapping[str, Any]) -> Any:
    """Return an asynchronous connection that is not yet open; its reader bounds its reads."""
    kind, given = _given({"socket_timeout": None, **options})
    return kind(**given)


async def drop(connection: Any) -> None:
    """Close an asynchronous connection at once, without waiting until a server that may hang has taken what was written to it."""
    writer = connection._writer
    await connection.disconnect(nowait=True)
    if writer is not None:
        writer.transport.abort()


def client(options: Mapping[str, Any], timeout: float) -> redis.Redis:
    """Return a synchronous client with one open connection, whose answers may take ``timeout`` seconds each."""
    # A server that hangs accepts connections and never greets: news that another took its place would find no connection to close yet.
    opening = min(timeout, CONNECT_TIMEOUT)
    bounds = {"socket_timeout": opening, "socket_connect_timeout": opening}
    kind, given = _given({**options, **bounds})
    pool = redis.ConnectionPool(connection_class=_SYNCHRONOUS[kind], **given)
    # One connection that stays with it: closing it wakes a thread that waits for an answer.
    made = redis.Redis(connection_pool=pool, retry=given["retry"], single_connection_client=True)
    made.auto_close_connection_pool = True
    opened: Any = made.connection
    opened.update_current_socket_timeout(timeout)
    return made


def check(options: Mapping[str, Any]) -> None:
    """Look whether connections can be made of these options.

    Raises:
        TypeError: one of them is unknown.
    """
    kind, given = _given(options)
    kind(**given)
    _SYNCHRONOUS[kind](**given)


def encrypted(options: Mapping[str, Any]) -> bool:
    """Return whether connections of these options speak TLS."""
    return options.get("connection_class") is aredis.SSLConnection


def _given(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    given = {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "protocol": 3,
        **options,
        # A blind retry would publish twice, and ten of them at one node keep everybody waiting for the others.
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
    }
    if not {"lib_name", "lib_version"} & given.keys():
        given = {**(_NO_LIBRARY if given["protocol"] == 3 else _LIBRARY), **given}
    kind = given.pop("connection_class", aredis.Connection)
    if kind is aredis.SSLConnection:
        # Without one, OpenSSL asks at the terminal for the password of a key, and everything waits.
        given.setdefault("ssl_password", "")
    return kind, given
