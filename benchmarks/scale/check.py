"""Compare the model with what happens: a few namespaces with a few workers each, on one server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from benchmarks.scale import measure, meter
from benchmarks.scale.costs import Costs
from benchmarks.scale.report import table
from benchmarks.servers import RedisServer, redis_server

_LOOKS = 10
CASES = ((1, 1), (2, 1), (4, 1), (1, 4), (2, 2), (4, 2))


class Compared(msgspec.Struct, frozen=True):
    """One figure, predicted and measured."""

    namespaces: int
    workers: int
    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return the prediction as a multiple of what was measured, less one."""
        return self.predicted / self.measured - 1


def compare(costs: Costs, *, calls: int, in_flight: int, cases: Sequence[tuple[int, int]] = CASES) -> list[Compared]:
    """Run every case, and compare what calls and processes take with what the costs say.

    CPU time is compared by ratios to the first case, so that costs that were measured on another machine do as well.
    """
    found: list[Compared] = []
    with redis_server() as server:
        first = 0.0
        for namespaces, workers in cases:
            names = [f"check-{number}" for number in range(namespaces)]
            made = measure.call(server, names, calls, in_flight, workers).server
            cost, count = costs.call(in_flight), calls * namespaces
            first = first or made.us / count / cost.server_us
            found += [
                Compared(namespaces, workers, "server, µs per call", cost.server_us * first, made.us / count),
                Compared(namespaces, workers, "commands per call", cost.commands, made.commands / count),
                Compared(namespaces, workers, "bytes per call", cost.bytes, made.bytes / count),
                *_resting(server, costs, names, workers),
            ]
    return found


def _resting(server: RedisServer, costs: Costs, names: Sequence[str], workers: int) -> list[Compared]:
    server.reset()
    before = meter.settled(server.client)
    with contextlib.ExitStack() as stack:
        for side, each in (("workers", workers), ("agents", 1)):
            stack.enter_context(measure.started(side, server.url, names, each=each))
        held = _smallest(server).since(before)
    server.reset()
    connections = len(names) * (workers * costs.worker_connections + costs.agent_connections)
    memory = len(names) * (workers * costs.worker_bytes + costs.agent_bytes)
    return [
        Compared(len(names), workers, "connections", connections, held.connections),
        Compared(len(names), workers, "memory, KB", memory / 1e3, held.memory / 1e3),
    ]


def _smallest(server: RedisServer) -> meter.Reading:
    """Return the counters once buffers of new connections have shrunk, which takes the server some seconds."""
    found = meter.settled(server.client)
    for _ in range(_LOOKS):
        later = meter.settled(server.client)
        if later.memory > found.memory * 0.98:
            return later
        found = later
    return found


def shown(found: Sequence[Compared]) -> str:
    """Return a table of all comparisons."""
    head = ("namespaces × workers", "what", "predicted", "measured", "error")
    rows = [
        (f"{each.namespaces} × {each.workers}", each.what, f"{each.predicted:,.2f}", f"{each.measured:,.2f}", f"{each.error:+.0%}")
        for each in found
    ]
    return table(head, rows)
