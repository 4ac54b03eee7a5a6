"""Serve a gateway: listen, answer, and on a signal finish what is being answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from toolbus import telemetry
from toolbus.gateway.gateway import Gateway
from toolbus.gateway.http_protocol import GuardedProtocol
from toolbus.results import ConfigurationError
from toolbus.safe_text import reason_of
from toolbus.worker.process.ending import ended_by

# Pools of clients keep connections for about a minute; one that we close first costs them a failed request.
_KEEP_ALIVE = 75
_BACKLOG = 2048
# Seconds within which a second signal is the same one: a program and its group may both be told.
_TWICE = 0.5


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

    A second signal ends it at once. Streams that can go on at another replica are ended while there is time for that.

    Args:
        app: answers them.
        gateway: what the application serves.
        listening: the socket at which it listens.
        grace: seconds.
        on_serving: called once when requests are answered.
        on_stopping: called once at the first signal.
    """
    _hear_uvicorn()
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
            timeout_graceful_shutdown=max(1, round(grace)),
            backlog=_BACKLOG,
        )
    )
    with _signals(server, gateway, grace, on_stopping):
        telemetry.log.info("gateway.serving", url=url_of(listening))
        server.on_serving = on_serving
        await server.serve(sockets=[listening])
    telemetry.log.info("gateway.stopped")


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
def _signals(server: uvicorn.Server, gateway: Gateway, grace: float, on_stopping: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    first = 0.0

    def stop() -> None:
        nonlocal first
        if server.should_exit:
            return
        telemetry.log.info("gateway.draining", calls=gateway.measures.in_flight, grace=grace)
        first, server.should_exit = loop.time(), True
        gateway.draining.set()
        on_stopping()
        timers.append(loop.call_later(max(0.0, grace - gateway.options.resume), gateway.stopping.set))
        timers.append(loop.call_later(grace, cut))

    def again() -> None:
        if loop.time() - first >= _TWICE:
            telemetry.log.warning("gateway.cut", calls=gateway.measures.in_flight)
            server.force_exit = True

    def cut() -> None:
        telemetry.log.warning("gateway.cut", calls=gateway.measures.in_flight)

    try:
        with ended_by(stop, again):
            yield
    finally:
        for timer in timers:
            timer.cancel()


class _Bridge(logging.Handler):
    """Logs the tracebacks that uvicorn reports; nothing else of it is worth a line."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and not _is_lost(record.exc_info[1]):
            telemetry.log.error("gateway.bug", exc_info=record.exc_info[1])


def _is_lost(error: BaseException) -> bool:
    """Return whether an answer could not be written, since its client has just closed the connection."""
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "handler is closed" in str(error))


def _hear_uvicorn() -> None:
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [_Bridge()]
    logger.propagate = False
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.ERROR)
