"""Start what toolbus connects to in other ways than to one plain server: a server behind TLS, and a cluster."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme

from benchmarks.processes import child
from benchmarks.servers import RedisServer, ServerError, binary, free_port

_NODES = 3
_SLOTS = 16384
_MEET_SECONDS = 30.0


@contextlib.contextmanager
def tls_server(kind: str) -> Iterator[RedisServer]:
    """Run a server that answers over TLS for callers and workers, and in plain text for the counting of its commands.

    Raises:
        ServerError: the server is built without TLS, or did not start.
    """
    program = binary(kind)
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=10, check=False).stdout
    if "libssl" not in linked:
        raise ServerError(f"{kind} is built without TLS; with a redis-server on PATH that has it, use --server redis")
    plain, secure = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        authority, ca, pair = trustme.CA(), Path(folder, "ca.pem"), Path(folder, "server.pem")
        authority.cert_pem.write_to_path(str(ca))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pair))
        command = [program, "--port", str(plain), "--tls-port", str(secure), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        command += ["--tls-cert-file", str(pair), "--tls-key-file", str(pair), "--tls-ca-cert-file", str(ca), "--tls-auth-clients", "no"]
        with child(f"{kind} behind TLS", command) as process:
            server = RedisServer(plain, process)
            server.wait()
            server.url = f"rediss://127.0.0.1:{secure}"
            server.variables = {"TOOLBUS_TLS_CA": str(ca)}
            yield server


class ClusterServer(RedisServer):
    """Masters that share the slots, counted together."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        self.url = nodes[0].url.replace("redis://", "redis+cluster://")
        self.variables = {}
        self.process = self
        self.description = f"{len(nodes)} × {nodes[0].description}"

    def cpu(self) -> float:
        """Return the CPU seconds of all nodes so far."""
        return sum(node.process.cpu() for node in self.nodes)

    def reset(self) -> None:
        """Drop every key of every node."""
        for node in self.nodes:
            node.reset()

    def commands(self) -> int:
        """Return the number of commands that all nodes have run so far."""
        return sum(node.commands() for node in self.nodes)


@contextlib.contextmanager
def cluster(kind: str) -> Iterator[ClusterServer]:
    """Run three masters without replicas, as one cluster.

    Raises:
        ServerError: one did not start, or they did not find each other in time.
    """
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(_node(kind)) for _ in range(_NODES)]
        clients: list[Any] = [node.client for node in nodes]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", _SLOTS * number // _NODES, _SLOTS * (number + 1) // _NODES - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        limit = time.monotonic() + _MEET_SECONDS
        while not all(_is_whole(client) for client in clients):
            if time.monotonic() > limit:
                raise ServerError(f"the nodes of the cluster did not find each other within {_MEET_SECONDS:.0f} s")
            time.sleep(0.05)
        yield ClusterServer(nodes)


def _is_whole(client: Any) -> bool:
    facts = client.execute_command("CLUSTER INFO")
    return bool(facts["cluster_state"] == "ok" and facts["cluster_slots_ok"] == str(_SLOTS))


class _Node(RedisServer):
    port = bus_port = 0


@contextlib.contextmanager
def _node(kind: str) -> Iterator[_Node]:
    port, bus_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        command = [binary(kind), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        command += ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
        with child(f"{kind} in a cluster", command) as process:
            node = _Node(port, process)
            node.port, node.bus_port = port, bus_port
            node.wait()
            yield node
