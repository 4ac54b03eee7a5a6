"""The measured costs that the simulation is fed with."""

from __future__ import annotations

import bisect
import json
from pathlib import Path

import msgspec

MEASURED = Path(__file__).with_name("measured.json")
"""The costs that the documentation shows."""


class CallCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of one echo of 200 bytes while so many calls of one agent are in flight.

    Attributes:
        in_flight: calls of one agent process at a time.
        server_us: CPU time of the server's main thread, in microseconds.
        caller_us: CPU time of the agent's process.
        worker_us: CPU time of the worker's process.
        commands: commands at the server, those within scripts included.
        bytes: what goes over the server's network, both ways.
    """

    in_flight: int
    server_us: float
    caller_us: float
    worker_us: float
    commands: float
    bytes: float


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that was measured; times are CPU time of the server's main thread unless said otherwise.

    Attributes:
        calls: calls, by how many are in flight, in ascending order.
        worker_us_per_s: an idle worker with one service, per second.
        service_us_per_s: each further service of an idle worker, per second.
        agent_us_per_s: an idle agent with an empty registry, per second.
        worker_bytes_per_s: network of an idle worker.
        agent_bytes_per_s: network of an idle agent.
        worker_connections: connections of a worker.
        agent_connections: connections of an agent.
        worker_bytes: the server's memory for an idle worker with one service, connections included.
        agent_bytes: the server's memory for an idle agent, connections included.
        reap_us_per_worker: a reap's time for each worker of the service, which each of them pays three times a lease.
        register_us: one registration of a service with two tools.
        tool_bytes: the server's memory for a tool in the registry.
        snapshot_us_per_tool: reading a tool of the registry.
        snapshot_bytes_per_tool: the same over the network.
        agent_us_per_tool: CPU time of the agent's process for reading a tool.
        agent_bytes_per_tool: memory of the agent's process for a tool.
        change_us_per_agent: telling one agent of one change of the registry.
        change_bytes_per_agent: the same over the network.
        queued_bytes: the server's memory for a queued request of 200 bytes.
        publish_us: a message of a wake-up channel at each further master of a cluster.
        machine: what it was measured on.
    """

    calls: tuple[CallCost, ...]
    worker_us_per_s: float
    service_us_per_s: float
    agent_us_per_s: float
    worker_bytes_per_s: float
    agent_bytes_per_s: float
    worker_connections: float
    agent_connections: float
    worker_bytes: float
    agent_bytes: float
    reap_us_per_worker: float
    register_us: float
    tool_bytes: float
    snapshot_us_per_tool: float
    snapshot_bytes_per_tool: float
    agent_us_per_tool: float
    agent_bytes_per_tool: float
    change_us_per_agent: float
    change_bytes_per_agent: float
    queued_bytes: float
    publish_us: float
    machine: str

    def call(self, in_flight: float) -> CallCost:
        """Return the cost of a call between two measured ones, by straight lines; beyond them, that of the nearest."""
        levels = [each.in_flight for each in self.calls]
        if in_flight <= levels[0]:
            return self.calls[0]
        if in_flight >= levels[-1]:
            return self.calls[-1]
        above = bisect.bisect_right(levels, in_flight)
        low, high = self.calls[above - 1], self.calls[above]
        share = (in_flight - low.in_flight) / (high.in_flight - low.in_flight)

        def between(field: str) -> float:
            least, most = float(getattr(low, field)), float(getattr(high, field))
            return least + share * (most - least)

        server, caller, worker, commands, size = map(between, ("server_us", "caller_us", "worker_us", "commands", "bytes"))
        return CallCost(int(in_flight), server, caller, worker, commands, size)


def load(path: Path = MEASURED) -> Costs:
    """Read measured costs.

    Raises:
        ValueError: the file is missing, or holds no costs; the message says which.
    """
    try:
        return msgspec.convert(json.loads(path.read_bytes())["costs"], Costs)
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}); `python -m benchmarks.scale measure --json {path}` writes it") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no measured costs: {error}; measure them again") from None
