"""Sentinels and clusters of real servers, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from toolbus.bus.broker.transport.embedded import HOST, EmbeddedServer, find_binary, free_port

SLOTS = 16_384

# Sentinels look more often than usual and demote an old primary after two seconds instead of eight;
# a busy machine does not make them rest for 30 seconds.
_BRISK = ("info-period", 500, "ping-period", 200, "ask-period", 200, "publish-period", 500, "tilt-trigger", 30_000)


def until(condition: Any, timeout: float = 40.0) -> Any:
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
    """A primary, its replica, and Sentinels that fail over half a second after the primary falls silent."""

    name = "mymaster"

    def __init__(self, folder: Path, sentinels: int = 1) -> None:
        self._folder = folder
        # By default a replica waits five seconds for others before it is synchronised.
        self.primary, self.replica = (EmbeddedServer(config={"repl-diskless-sync-delay": "0"}) for _ in range(2))
        self.sentinels: list[subprocess.Popen[bytes]] = []
        self._ports = [free_port() for _ in range(sentinels)]

    @property
    def url(self) -> str:
        """The URL for toolbus."""
        return f"redis+sentinel://{','.join(f'{HOST}:{port}' for port in self._ports)}/{self.name}"

    def start(self) -> None:
        """Start all of it, and wait until the Sentinels know the replica and each other."""
        self.primary.start()
        self.replica.start()
        with redis.Redis.from_url(self.replica.url) as client:
            client.replicaof(HOST, self.primary.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
        for number, port in enumerate(self._ports):
            self.sentinels.append(self._sentinel(self._folder / f"sentinel-{number}", port))
        for port in self._ports:
            with self.asked(port) as client:
                until(lambda client=client: client.execute_command("SENTINEL", "DEBUG", *_BRISK))
                until(lambda client=client: client.execute_command("SENTINEL REPLICAS", self.name))
                until(lambda client=client: len(client.execute_command("SENTINEL SENTINELS", self.name)) == len(self._ports) - 1)

    def _sentinel(self, folder: Path, port: int) -> subprocess.Popen[bytes]:
        folder.mkdir()
        conf = folder / "sentinel.conf"
        conf.write_text(
            f"bind {HOST}\nport {port}\ndir {folder}\n"
            f"sentinel monitor {self.name} {HOST} {self.primary.port} {len(self._ports) // 2 + 1}\n"
            f"sentinel down-after-milliseconds {self.name} 500\n"
            f"sentinel failover-timeout {self.name} 3000\n"
        )
        with (folder / "log").open("wb") as log:
            return subprocess.Popen([str(find_binary()), str(conf), "--sentinel"], stdout=log, stderr=log)

    @contextmanager
    def asked(self, port: int = 0) -> Iterator[Any]:
        """A client of a Sentinel, the first one unless another port is given."""
        with redis.Redis(HOST, port or self._ports[0], socket_timeout=2.0) as client:
            yield client

    def master_port(self) -> int:
        """Return the port at which the Sentinel says that the master is."""
        with self.asked() as client:
            return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)[1])

    def fail_over(self) -> None:
        """Have the replica take the primary's place, as for maintenance; returns when it has begun."""
        with self.asked() as client:
            # Until the Sentinel has looked at the replica it finds none that is good enough.
            until(lambda: client.execute_command("SENTINEL FAILOVER", self.name))

    def stop(self) -> None:
        """Stop all of it, also what a test has stopped half-way."""
        for process in self.sentinels:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        if self.primary.running:
            os.kill(self.primary.pid, signal.SIGCONT)
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

    def begin_to_move(self, slot: int) -> tuple[EmbeddedServer, EmbeddedServer]:
        """Let a slot's keys be moved from its node to another one, as a resharding does; returns both."""
        source = self.owner(slot)
        target = next(node for node in self.nodes if node is not source)
        with self.client(source) as leaving, self.client(target) as arriving:
            arriving.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", leaving.execute_command("CLUSTER MYID"))
            leaving.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", arriving.execute_command("CLUSTER MYID"))
        return source, target

    def end_move(self, slot: int, target: EmbeddedServer) -> None:
        """Give a slot whose keys have been moved to its new node."""
        with self.client(target) as arriving:
            target_id = arriving.execute_command("CLUSTER MYID")
        for node in (target, *(node for node in self.nodes if node is not target)):
            with self.client(node) as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)

    def stop(self) -> None:
        """Stop the nodes."""
        for node in self.nodes:
            node.stop()
