"""The counters of a server: what it has done and holds."""

from __future__ import annotations

import platform
import time
from typing import Any, NamedTuple

import redis

from benchmarks.servers import RedisServer

# A server's timers free what a test has dropped, and connections close, some time later.
_SETTLE_SECONDS = 1.5


class Reading(NamedTuple):
    """Counters at one moment, or what lies between two.

    Attributes:
        us: CPU time of the main thread, in microseconds.
        commands: commands, those within scripts included.
        bytes: network, both ways.
        memory: bytes that are in use.
        connections: clients that are connected.
        seconds: the local clock.
    """

    us: float
    commands: int
    bytes: int
    memory: int
    connections: int
    seconds: float

    def since(self, before: Reading) -> Reading:
        """Return what was added after an earlier reading."""
        return Reading(*(now - then for now, then in zip(self, before, strict=True)))


def read(client: redis.Redis) -> Reading:
    """Read the counters; the clock of the machine plays no part in those of CPU time."""
    facts: dict[str, Any] = {}
    for section in ("cpu", "stats", "memory", "clients"):
        facts |= client.info(section)
    return Reading(
        us=(facts["used_cpu_sys_main_thread"] + facts["used_cpu_user_main_thread"]) * 1e6,
        commands=facts["total_commands_processed"],
        bytes=facts["total_net_input_bytes"] + facts["total_net_output_bytes"],
        memory=facts["used_memory"],
        connections=facts["connected_clients"],
        seconds=time.monotonic(),
    )


def settled(client: redis.Redis) -> Reading:
    """Read the counters when the effects of what came before are over."""
    time.sleep(_SETTLE_SECONDS)
    return read(client)


def machine(server: RedisServer) -> str:
    """Return what is measured on."""
    return f"{server.description}, Python {platform.python_version()}, {platform.machine()}"
