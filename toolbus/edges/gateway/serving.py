"""Serve a gateway: listen, answer, and on a signal finish what is being answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.process.lifeline import ended_by
from toolbus.edges.gateway.gateway import Gateway

HEADERS_WITHIN = 15.0
"""Seconds within which the headers of a request must have arrived; a new connection counts from its beginning."""

MOST_HEADERS = 32_768
"""Bytes of a request's first line and headers, and of what may come between two parts of its body or after the last."""

BODY_WITHIN = 60.0
"""Seconds within which a request must be whole; the application, which answers slow bodies itself, waits for less."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
# Bytes around the name and the value of a header in its line.
_AROUND = 4


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
            # A target is a path, or has an authority. Another one than the Host header's is a second host, which the guards refuse.
            authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].lower()
            hosts = [value.lower() for name, value in self.headers if name == b"host"]
            if authority and not self.url.startswith(b"/") and authority not in hosts:
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


# Pools of clients keep connections for about a minute; one that we close first costs them a failed request.
_KEEP_ALIVE = 75
_BACKLOG = 2048
# Seconds for answers that are cut off.
_CUT = 5


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 is a free one.

    Raises:
        ConfigurationError: it can't.
    """
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        if made is not None:
            made.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or reason_of(error)
        raise ConfigurationError(f"can't listen at {host}:{port}: {reason}; choose another place with --host and --port") from None
    return made


def url_of(listening: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: ASGIApp,
    gateway: Gateway,
    listening: socket.socket,
    *,
    grace: float,
    on_serving: Callable[[], object],
    on_stopping: Callable[[], object] = lambda: None,
) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish what is being answered, within ``grace`` seconds.

    A signal half a second later or more ends it at once. Streams that can go on at another replica are ended while there is time for that.

    Args:
        app: answers them.
        gateway: what the application serves.
        listening: the socket at which it listens.
        grace: seconds.
        on_serving: called once when requests are answered.
        on_stopping: called once at the first signal.
    """
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [_Bridge()]
    logger.propagate = False
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    server = _Server(
        uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            # Later than we cut off what is left.
            timeout_graceful_shutdown=math.ceil(grace) + _CUT,
            backlog=_BACKLOG,
        )
    )
    cut = asyncio.Event()
    with _signals(server, gateway, grace, on_stopping, cut):
        telemetry.log.info("gateway.serving", url=url_of(listening))
        server.on_serving = on_serving
        async with asyncio.TaskGroup() as tasks:
            cutting = tasks.create_task(_cut_off(cut, server, gateway))
            await server.serve(sockets=[listening])
            if not cut.is_set():
                cutting.cancel()
    telemetry.log.info("gateway.stopped")


async def _cut_off(cut: asyncio.Event, server: uvicorn.Server, gateway: Gateway) -> None:
    """Wait until requests are to be cut off; then answer those that wait for calls, and hang up on the others."""
    await cut.wait()
    telemetry.log.warning("gateway.cut", calls=gateway.measures.in_flight)
    server.force_exit = True
    # Which is left to us then; it needs the bus.
    await server.lifespan.shutdown()
    await gateway.bus.aclose()
    # From Python 3.12.1 on, a server is closed when its last connection is.
    for connection in [*server.server_state.connections]:
        connection.transport.close()


class _Server(uvicorn.Server):
    on_serving: Callable[[], object]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: ours are heard by the event loop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.on_serving()


@contextlib.contextmanager
def _signals(
    server: uvicorn.Server, gateway: Gateway, grace: float, on_stopping: Callable[[], object], cut: asyncio.Event
) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def stop() -> None:
        if server.should_exit:
            return
        telemetry.log.info("gateway.draining", calls=gateway.measures.in_flight, grace=grace)
        server.should_exit = True
        gateway.draining.set()
        on_stopping()
        timers.append(loop.call_later(max(0.0, grace - gateway.options.resume), gateway.stopping.set))
        timers.append(loop.call_later(grace, cut.set))

    try:
        with ended_by(stop, cut.set):
            yield
    finally:
        for timer in timers:
            timer.cancel()


class _Bridge(logging.Handler):
    """Logs the tracebacks that uvicorn reports; nothing else of it is worth a line."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # An answer can't be written to a client that has just closed the connection, or was cut off.
        closed = isinstance(error, RuntimeError) and "handler is closed" in str(error)
        if error is not None and not closed and not isinstance(error, (OSError, asyncio.CancelledError)):
            telemetry.log.error("gateway.bug", exc_info=error)
