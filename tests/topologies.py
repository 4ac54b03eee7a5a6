"""Sentinels and clusters of real servers, for tests."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from toolbus.broker.embedded import HOST, EmbeddedServer, find_binary

SLOTS = 16_384


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def until(condition: Any, timeout: float = 20.0) -> Any:
    """Wait for a plain condition that may raise while its server is not there."""
    deadline = time.monotonic() + timeout
    while True:
        with suppress(redis.RedisError):
            if value := condition():
                return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s")
        time.sleep(0.02)


class Watched:
    """A primary, its replica, and a Sentinel that fails over half a second after the primary falls silent."""

    name = "mymaster"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary = EmbeddedServer()
        self.replica = EmbeddedServer()
        self._sentinel: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    @property
    def url(self) -> str:
        """The URL for toolbus."""
        return f"redis+sentinel://{HOST}:{self._port}/{self.name}"

    def start(self) -> None:
        """Start all of it, and wait until the Sentinel knows the replica."""
        self.primary.start()
        self.replica.start()
        with redis.Redis.from_url(self.replica.url) as client:
            client.replicaof(HOST, self.primary.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
        conf = self._folder / "sentinel.conf"
        conf.write_text(
            f"bind {HOST}\nport {self._port}\ndir {self._folder}\n"
            f"sentinel monitor {self.name} {HOST} {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {self.name} 500\n"
            f"sentinel failover-timeout {self.name} 3000\n"
        )
        with (self._folder / "sentinel.log").open("wb") as log:
            self._sentinel = subprocess.Popen([str(find_binary()), str(conf), "--sentinel"], stdout=log, stderr=log)
        with self.asked() as client:
            until(lambda: client.execute_command("SENTINEL REPLICAS", self.name))

    @contextmanager
    def asked(self) -> Iterator[Any]:
        """A client of the Sentinel."""
        with redis.Redis(HOST, self._port, socket_timeout=2.0) as client:
            yield client

    def master_port(self) -> int:
        """Where the Sentinel says that the master is."""
        with self.asked() as client:
            return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)[1])

    def stop(self) -> None:
        """Stop all of it."""
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        self.replica.stop()
        self.primary.stop()


class Cluster:
    """Three masters that share the slots."""

    def __init__(self) -> None:
        self.nodes = [self._node() for _ in range(3)]

    @staticmethod
    def _node() -> EmbeddedServer:
        config = {"cluster-enabled": "yes", "cluster-node-timeout": "3000", "cluster-port": str(free_port())}
        return EmbeddedServer(config=config)

    @property
    def url(self) -> str:
        """The URL for toolbus, which names one of the nodes."""
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    def start(self) -> None:
        """Start the nodes, share out the slots, and wait until all agree."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            with self.client(node) as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        with self.client(self.nodes[0]) as client:
            for node in self.nodes[1:]:
                client.execute_command("CLUSTER MEET", HOST, node.port, node._config["cluster-port"])
        for node in self.nodes:
            with self.client(node) as client:
                until(lambda client=client: b"cluster_state:ok" in client.execute_command("CLUSTER INFO"))
                until(lambda client=client: client.execute_command("CLUSTER INFO").count(b"cluster_known_nodes:3"))

    def client(self, node: EmbeddedServer) -> Any:
        """A plain client of one node, whose answers are not made into anything."""
        client = redis.Redis(HOST, node.port, protocol=2, socket_timeout=5.0)
        client.response_callbacks.clear()
        return client

    def owner(self, slot: int) -> EmbeddedServer:
        """The node that serves a slot."""
        with self.client(self.nodes[0]) as client:
            for first, last, master, *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return next(node for node in self.nodes if node.port == int(master[1]))
        raise LookupError(slot)

    def stop(self) -> None:
        """Stop the nodes."""
        for node in self.nodes:
            node.stop()
