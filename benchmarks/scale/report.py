"""Tables of the costs, of the limits of one namespace, and of deployments in many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.scale.costs import Costs
from benchmarks.scale.model import LEASE, RECONCILE, Demand, load_of, messages, processes_of
from benchmarks.scale.simulate import Limit, Placed, Server, limits, place

SEED = 1
SKEW = 0.5
DIVISIONS = (1, 10, 100, 300, 1_000, 3_000)
_GB, _MB, _KB = 1e9, 1e6, 1e3


class Study(msgspec.Struct, frozen=True):
    """Everything that is told of one demand."""

    costs: Costs
    demand: Demand
    server: Server
    limits: list[Limit]
    placed: list[Placed]

    def tables(self) -> dict[str, str]:
        """Return the tables by name."""
        return {
            "calls": calls(self.costs),
            "costs": others(self.costs),
            "limits": ends(self.limits),
            "single": singles(self.costs, self.demand, self.server),
            "causes": causes(self.costs, self.demand),
            "placed": masters(self.placed),
            "processes": processes(self.costs, self.demand),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def study(costs: Costs, demand: Demand, server: Server, *, skew: float = SKEW, seed: int = SEED) -> Study:
    """Look where one namespace ends, and what many take."""
    divided = [msgspec.structs.replace(demand, namespaces=namespaces) for namespaces in DIVISIONS]
    placed = [place(costs, each, server, skew=skew, seed=seed) for each in divided]
    return Study(costs, demand, server, limits(costs, demand, server), placed)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose columns but for the first are numbers."""
    line = "|" + "|".join(["---", *(["---:"] * (len(head) - 1))]) + "|"
    return "\n".join(["| " + " | ".join(head) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)])


def calls(costs: Costs) -> str:
    """Return what a call takes."""
    head = ("calls in flight of an agent", "server, µs", "agent, µs", "worker, µs", "commands", "bytes")
    rows = [
        (
            f"{each.in_flight}",
            f"{each.server_us:.1f}",
            f"{each.caller_us:.1f}",
            f"{each.worker_us:.1f}",
            f"{each.commands:.2f}",
            f"{each.bytes:,.0f}",
        )
        for each in costs.calls
    ]
    return table(head, rows)


def others(costs: Costs) -> str:
    """Return what everything else takes."""
    rows = [
        ("an idle worker, per second", f"{costs.worker_us_per_s:.0f} µs, {costs.worker_bytes_per_s:,.0f} bytes"),
        ("each further service of it, per second", f"{costs.service_us_per_s:.1f} µs"),
        ("a worker: connections, memory", f"{costs.worker_connections:.0f}, {costs.worker_bytes / _KB:.1f} KB"),
        ("an idle agent, per second", f"{costs.agent_us_per_s:.0f} µs, {costs.agent_bytes_per_s:,.0f} bytes"),
        ("an agent: connections, memory", f"{costs.agent_connections:.0f}, {costs.agent_bytes / _KB:.1f} KB"),
        ("a reap, for each busy worker of the service", f"{costs.reap_us_per_worker:.2f} µs"),
        ("a registration of a service with two tools", f"{costs.register_us:.0f} µs"),
        ("a tool in the registry: memory", f"{costs.tool_bytes / _KB:.1f} KB"),
        ("an agent that reads a tool", f"{costs.snapshot_us_per_tool:.1f} µs, {costs.snapshot_bytes_per_tool / _KB:.1f} KB"),
        ("the same in the agent's process", f"{costs.agent_us_per_tool:.0f} µs, {costs.agent_bytes_per_tool / _KB:.1f} KB of memory"),
        ("a change of the registry, for each agent", f"{costs.change_us_per_agent:.0f} µs, {costs.change_bytes_per_agent / _KB:.1f} KB"),
        ("a queued request of 200 bytes: memory", f"{costs.queued_bytes:,.0f} bytes"),
        ("a wake-up, at each master of a cluster", f"{costs.publish_us:.1f} µs"),
    ]
    return table(("at the server", "measured"), rows)


def ends(found: Sequence[Limit]) -> str:
    """Return where one namespace ends, the first limit first."""
    rows = [
        (each.what, f"{each.factor:.1%}" if each.factor < 1 else f"{each.factor:,.0f} ×", f"{each.demand.calls:,.0f}")
        for each in found
        if each.factor < 100
    ]
    return table(("what is used up", "at", "calls/s"), rows)


def singles(costs: Costs, demand: Demand, server: Server) -> str:
    """Return the most that one master takes of each thing, were there nothing else."""
    core = server.cores * 1e6
    registry = costs.snapshot_us_per_tool / RECONCILE
    each_reap = costs.reap_us_per_worker * 3 / LEASE
    rows = [
        *((f"calls per second, {level.in_flight} in flight of each agent", f"{core / level.server_us:,.0f}") for level in costs.calls),
        ("agents × tools, by reading the registry again", f"{core / registry:,.0f}"),
        ("the same, by the network", f"{server.bytes * RECONCILE / costs.snapshot_bytes_per_tool:,.0f}"),
        ("agents × changes of the registry per second", f"{core / costs.change_us_per_agent:,.0f}"),
        ("workers, by connections", f"{server.connections / costs.worker_connections:,.0f}"),
        ("agents, by connections", f"{server.connections / costs.agent_connections:,.0f}"),
        ("idle workers, by their beats and reads", f"{core / costs.worker_us_per_s:,.0f}"),
        ("busy workers of one service, by their reaps", f"{math.sqrt(core / each_reap):,.0f}"),
        ("tools, by memory", f"{server.memory / costs.tool_bytes:,.0f}"),
        ("queued requests of 200 bytes, by memory", f"{server.memory / costs.queued_bytes:,.0f}"),
        ("wake-ups per second of a whole cluster", f"{core / costs.publish_us:,.0f}"),
    ]
    return table(("a master has room for", "at most"), rows)


def causes(costs: Costs, demand: Demand) -> str:
    """Return the cores of the main threads of all servers together, by cause."""
    every = [_together(costs, demand, namespaces) for namespaces in DIVISIONS]
    rows = [(part, *(_cores(each[part]) for each in every)) for part in every[0]]
    rows.append(("together", *(_cores(sum(each.values())) for each in every)))
    return table(("cores, by cause", *(f"{namespaces:,}" for namespaces in DIVISIONS)), rows)


def _together(costs: Costs, demand: Demand, namespaces: int) -> dict[str, float]:
    load = load_of(costs, demand.share(1 / namespaces))
    found = {part: us * namespaces / 1e6 for part, us in load.parts.items()}
    [(name, us)] = messages(costs, demand).parts.items()
    return found | {f"{name}, at each master": us / 1e6}


def _cores(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def masters(found: Sequence[Placed]) -> str:
    """Return the masters that divisions take."""
    head = (
        "namespaces",
        "the largest takes of a master",
        "masters, by name",
        "masters, by hand",
        "network, GB/s",
        "memory, GB",
        "connections",
    )
    rows = [
        (
            f"{each.namespaces:,}",
            f"{each.fullest_namespace:.0%}" if each.fits else f"{each.fullest_namespace:,.1f} ×",
            f"{each.masters} (at most {each.most_masters})" if each.fits else "none is enough",
            f"{each.by_hand}" if each.fits else "none is enough",
            f"{each.bytes / _GB:.1f}",
            f"{each.memory / _GB:.1f}",
            f"{each.connections:,.0f}",
        )
        for each in found
    ]
    return table(head, rows)


def processes(costs: Costs, demand: Demand) -> str:
    """Return what agents and workers need."""
    every = [processes_of(costs, msgspec.structs.replace(demand, namespaces=namespaces)) for namespaces in DIVISIONS]
    rows = [
        ("cores of all agents", *(f"{each.agent_cores:,.0f}" for each in every)),
        ("cores of all workers, without the tools themselves", *(f"{each.worker_cores:,.0f}" for each in every)),
        ("memory of an agent for its copy of the registry, MB", *(f"{each.agent_memory / _MB:,.1f}" for each in every)),
    ]
    return table(("namespaces", *(f"{namespaces:,}" for namespaces in DIVISIONS)), rows)
