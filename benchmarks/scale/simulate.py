"""A seeded simulation of a cluster: namespaces of unequal size fall into slots, slots belong to masters, and the fullest master decides."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections.abc import Callable, Sequence

import msgspec
from redis.crc import key_slot

from benchmarks.scale.costs import Costs
from benchmarks.scale.model import NOTHING, Demand, Load, load_of, messages
from toolbus.bus.broker.server.keys import Keys

SLOTS = 16_384
_MOST_MASTERS = 1_000


class Server(msgspec.Struct, frozen=True):
    """The most that one master may be asked for.

    Attributes:
        cores: share of the core of its main thread; beyond, waiting grows quickly.
        bytes: network per second, both ways: 60 % of 10 Gbit/s.
        connections: `maxclients`.
        memory: bytes.
    """

    cores: float = 0.6
    bytes: float = 0.75e9
    connections: float = 10_000
    memory: float = 16 * 2**30

    def uses(self, load: Load) -> dict[str, float]:
        """Return how much of each a load takes, as a share of what there may be."""
        return {
            "core": load.cores / self.cores,
            "network": load.bytes / self.bytes,
            "connections": load.connections / self.connections,
            "memory": load.memory / self.memory,
        }

    def fullest(self, load: Load) -> float:
        """Return the share of what is scarcest."""
        return max(self.uses(load).values())


class Limit(msgspec.Struct, frozen=True):
    """A limit of one namespace.

    Attributes:
        what: what is used up.
        factor: the part of the whole deployment at which it is.
        demand: the deployment of that size.
    """

    what: str
    factor: float
    demand: Demand


def limits(costs: Costs, demand: Demand, server: Server) -> list[Limit]:
    """Return where a growing namespace meets each limit, the first one first; each cause of load is tried against a core alone, too."""
    alone = msgspec.structs.replace(demand, namespaces=1)
    asked: dict[str, Callable[[Load], float]] = {
        "network": lambda load: load.bytes / server.bytes,
        "connections": lambda load: load.connections / server.connections,
        "memory": lambda load: load.memory / server.memory,
    }
    for part in load_of(costs, alone).parts:
        asked[f"core: {part}"] = lambda load, part=part: load.parts[part] / 1e6 / server.cores
    found = []
    for what, share in asked.items():
        factor = _where(lambda factor, share=share: share(load_of(costs, alone.times(factor))))
        found.append(Limit(what, factor, alone.times(factor)))
    return sorted(found, key=lambda each: each.factor)


def _where(share: Callable[[float], float]) -> float:
    """Return the factor at which a growing share is 1."""
    low, high = 0.0, 1.0
    while share(high) < 1 and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < 1 else (low, middle)
    return high


class Placed(msgspec.Struct, frozen=True):
    """The masters that a deployment takes.

    Attributes:
        namespaces: how many it is divided among.
        fits: whether each namespace fits one master; without, no number of masters is enough.
        fullest_namespace: share of a master that the largest namespace takes.
        masters: how many masters it takes where namespaces fall by their names, median of the simulated deployments.
        most_masters: the same, most of them.
        by_hand: how many it takes where slots are moved so that masters are equally full.
        cores: cores of all masters, for their main threads.
        bytes: network of all masters per second.
        memory: bytes of all masters.
        connections: connections of all masters.
        commands: commands per second of all masters, of calls.
    """

    namespaces: int
    fits: bool
    fullest_namespace: float
    masters: int
    most_masters: int
    by_hand: int
    cores: float
    bytes: float
    memory: float
    connections: float
    commands: float


def place(costs: Costs, demand: Demand, server: Server, *, skew: float, seed: int, runs: int = 9) -> Placed:
    """Simulate deployments with the same demand: names and sizes of namespaces are drawn anew in each.

    Args:
        skew: how unequal namespaces are, as the exponent of Zipf's law; 0 is equal.
        seed: of the names and the order of sizes.
        runs: how many deployments.
    """
    parts = [rank**-skew for rank in range(1, demand.namespaces + 1)]
    whole = sum(parts)
    loads = [load_of(costs, demand.share(part / whole)) for part in parts]
    everywhere = messages(costs, demand)
    largest = max(server.fullest(load.plus(everywhere)) for load in loads)
    total = NOTHING
    for load in loads:
        total = total.plus(load)
    least = max(1, *(int(-(-share // 1)) for share in server.uses(total).values()))
    if largest > 1:
        by_name, by_hand = [0], 0
    else:
        draw = random.Random(seed)
        by_name = [
            _masters(least, lambda masters, slots=slots: _by_slot(loads, slots, masters), server, everywhere)
            for slots in (_slots(draw, demand.namespaces) for _ in range(runs))
        ]
        by_hand = _masters(least, lambda masters: _balanced(loads, masters, server), server, everywhere)
    commands = sum(demand.calls * part / whole * costs.call(demand.calls * demand.seconds / demand.agents).commands for part in parts)
    return Placed(
        demand.namespaces,
        largest <= 1,
        largest,
        int(statistics.median(by_name)),
        max(by_name),
        by_hand,
        total.cores,
        total.bytes,
        total.memory,
        total.connections,
        commands,
    )


def _slots(draw: random.Random, namespaces: int) -> list[int]:
    """Return the slots of as many namespaces, by the keys that they have."""
    return [key_slot(Keys(f"tenant-{draw.randrange(10**9)}").live.encode()) for _ in range(namespaces)]


def _masters(least: int, fill: Callable[[int], list[Load]], server: Server, everywhere: Load) -> int:
    """Return the smallest number of masters of which none is too full; 0 when there is none."""
    for masters in itertools.chain(range(least, 64), range(max(least, 64), _MOST_MASTERS, 8)):
        if all(server.fullest(load.plus(everywhere)) <= 1 for load in fill(masters)):
            return masters
    return 0


def _by_slot(loads: Sequence[Load], slots: Sequence[int], masters: int) -> list[Load]:
    """Return the load of each master, where each has an equal range of slots."""
    found = [NOTHING] * masters
    for load, slot in zip(loads, slots, strict=True):
        owner = slot * masters // SLOTS
        found[owner] = found[owner].plus(load)
    return found


def _balanced(loads: Sequence[Load], masters: int, server: Server) -> list[Load]:
    """Return the load of each master, where each namespace, the largest first, goes to the emptiest."""
    heap = [(0.0, number, NOTHING) for number in range(masters)]
    for load in sorted(loads, key=server.fullest, reverse=True):
        _, number, held = heapq.heappop(heap)
        held = held.plus(load)
        heapq.heappush(heap, (server.fullest(held), number, held))
    return [held for _, _, held in heap]
