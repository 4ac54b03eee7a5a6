"""The load of a deployment on each server, from measured costs.

A namespace is one hash slot, and a slot is served by one master, whose main thread is one core. So a namespace is what load is added up
for, and a master has what its namespaces have.
"""

from __future__ import annotations

import msgspec

from benchmarks.scale.costs import Costs
from toolbus.bus.values.settings import Settings

LEASE = Settings().lease
_BEATS = 3 / LEASE
RECONCILE = 60.0
"""Seconds after which an agent reads the whole registry again."""


class Demand(msgspec.Struct, frozen=True):
    """The demand of a deployment.

    Attributes:
        calls: calls per second.
        tools: tools in the registry.
        workers: worker processes.
        agents: agent processes; each is in one namespace.
        namespaces: how many these are divided among.
        tools_each: tools of a service.
        replicas: workers of a service.
        seconds: how long a call takes, which says how many are in flight.
        changes: changes of the registry per second.
        cancelled: share of the calls that are cancelled while they run.
        queued: seconds of calls that may wait in queues, for the memory.
    """

    calls: float = 1_000_000
    tools: float = 100_000
    workers: float = 10_000
    agents: float = 2_000
    namespaces: int = 1
    tools_each: float = 10
    replicas: float = 4
    seconds: float = 0.1
    changes: float = 1.0
    cancelled: float = 0.001
    queued: float = 10.0

    def times(self, factor: float) -> Demand:
        """Return a deployment that is so many times as large; its services have as many tools and workers as before."""
        changed = {name: getattr(self, name) * factor for name in ("calls", "tools", "workers", "agents", "changes")}
        return msgspec.structs.replace(self, **changed)

    def share(self, part: float) -> Demand:
        """Return one namespace's part of it."""
        return msgspec.structs.replace(self.times(part), namespaces=1)


class Load(msgspec.Struct, frozen=True):
    """The work of a server per second, and what it holds.

    Attributes:
        parts: microseconds of the main thread by cause.
        bytes: network, both ways.
        connections: connected clients.
        memory: bytes.
    """

    parts: dict[str, float]
    bytes: float
    connections: float
    memory: float

    @property
    def cores(self) -> float:
        """Return the share of one core."""
        return sum(self.parts.values()) / 1e6

    def plus(self, other: Load) -> Load:
        """Return both together."""
        parts = {name: self.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in self.parts | other.parts}
        return Load(parts, self.bytes + other.bytes, self.connections + other.connections, self.memory + other.memory)


NOTHING = Load({}, 0.0, 0.0, 0.0)


def in_flight(demand: Demand) -> float:
    """Return how many calls of one agent are in flight."""
    return max(1.0, demand.calls * demand.seconds / max(demand.agents, 1e-9))


def load_of(costs: Costs, demand: Demand) -> Load:
    """Return the load of one namespace, whatever number the demand says; messages between masters are not in it."""
    call = costs.call(in_flight(demand))
    services = demand.tools / demand.tools_each
    served = max(1.0, services * demand.replicas / max(demand.workers, 1e-9))
    reads = demand.tools / RECONCILE
    told = demand.changes * demand.agents
    # Workers that hold calls count in each other's reaps, so it is the busy ones that matter.
    busy = min(demand.replicas, demand.calls * demand.seconds / max(services, 1e-9))
    parts = {
        "calls": demand.calls * call.server_us,
        "idle workers": demand.workers * (costs.worker_us_per_s + (served - 1) * costs.service_us_per_s),
        "reaps": services * demand.replicas * busy * costs.reap_us_per_worker * _BEATS,
        "idle agents": demand.agents * costs.agent_us_per_s,
        "registry read again": demand.agents * reads * costs.snapshot_us_per_tool,
        "registry changes": told * costs.change_us_per_agent,
    }
    size = (
        demand.calls * call.bytes
        + demand.workers * costs.worker_bytes_per_s
        + demand.agents * (costs.agent_bytes_per_s + reads * costs.snapshot_bytes_per_tool)
        + told * costs.change_bytes_per_agent
    )
    connections = demand.workers * costs.worker_connections + demand.agents * costs.agent_connections
    memory = (
        demand.tools * costs.tool_bytes
        + demand.workers * costs.worker_bytes
        + demand.agents * costs.agent_bytes
        + demand.calls * demand.queued * costs.queued_bytes
    )
    return Load(parts, size, connections, memory)


def messages(costs: Costs, demand: Demand) -> Load:
    """Return what every master of a cluster has to do for the wake-ups of the whole deployment, whichever master they are for."""
    count = demand.calls * demand.cancelled
    return Load({"wake-ups of all": count * costs.publish_us}, 0.0, 0.0, 0.0)


class Processes(msgspec.Struct, frozen=True):
    """The needs of agents and workers.

    Attributes:
        agent_cores: cores of all agents, for calls and for reading the registry.
        worker_cores: cores of all workers, but for what the tools do themselves.
        agent_memory: bytes of one agent's process for its copy of the registry.
    """

    agent_cores: float
    worker_cores: float
    agent_memory: float


def processes_of(costs: Costs, demand: Demand) -> Processes:
    """Return what the processes of the whole deployment need."""
    call = costs.call(in_flight(demand))
    tools = demand.tools / demand.namespaces
    reading = demand.agents * tools / RECONCILE * costs.agent_us_per_tool
    return Processes(
        agent_cores=(demand.calls * call.caller_us + reading) / 1e6,
        worker_cores=demand.calls * call.worker_us / 1e6,
        agent_memory=tools * costs.agent_bytes_per_tool,
    )
