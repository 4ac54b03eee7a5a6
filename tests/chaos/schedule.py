"""The faults of a run, from the seed alone: what happens when, to whom, for how long."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Kind(NamedTuple):
    """A kind of fault: how many a minute, how long each lasts (in leases), and what it does."""

    per_minute: float
    lasts: tuple[float, float]
    about: str
    outage: bool = False


POISON = "poison"
BACKLOG = "backlog"
PURGE = "purge"

KINDS: dict[str, Kind] = {
    "kill": Kind(40, (0, 0), "SIGKILL a worker; another is started"),
    "term": Kind(6, (0, 0), "SIGTERM a worker, which drains; another is started"),
    "stop": Kind(8, (0.3, 2.0), "SIGSTOP a worker, then SIGCONT"),
    "agent-kill": Kind(1, (0, 0), "SIGKILL an agent; it is started again with the rest of its calls"),
    "agent-stop": Kind(1, (0.3, 2.0), "SIGSTOP an agent, then SIGCONT", outage=True),
    "server-stop": Kind(0.6, (0.25, 1.5), "SIGSTOP the server, then SIGCONT", outage=True),
    "server-kill": Kind(0.6, (0, 0.3), "SIGKILL the server and start it again", outage=True),
    "client-pause": Kind(0.6, (0.2, 1.0), "CLIENT PAUSE for everybody", outage=True),
    "partition": Kind(
        1, (0.3, 1.7), "no byte passes the proxy, nobody is told; afterwards bytes flow again, or connections are cut", outage=True
    ),
    "reset": Kind(8, (0, 0), "cut some connections through the proxy at any byte"),
    "swallow": Kind(4, (0.05, 0.5), "the server carries commands out, but its replies never arrive, then the connections are cut"),
    "delay": Kind(2, (0.5, 2.0), "each chunk through the proxy comes late"),
    "client-kill": Kind(2, (0, 0), "CLIENT KILL for all ordinary connections"),
    "group-destroy": Kind(1, (0, 0), "XGROUP DESTROY of the consumer group"),
    "script-flush": Kind(2, (0, 0), "SCRIPT FLUSH"),
    "malformed": Kind(12, (0, 0), "requests and frames that nobody can read, straight onto the streams"),
    "versions": Kind(
        0, (0, 0), "workers come in two revisions of their descriptors, of this version of toolbus (for another version see --other)"
    ),
    BACKLOG: Kind(0, (0, 0), "requests without a caller are queued before the first call (see --backlog)"),
    POISON: Kind(0, (0, 0), "some calls crash, hang, block or flood their worker"),
    PURGE: Kind(0, (0, 0), "what is queued is purged (in simulated runs alone)"),
    "flushall": Kind(0.4, (0, 0), "FLUSHALL (calls may then end deadline_exceeded or outcome_unknown)"),
    "half-open": Kind(1, (0, 0), "a few connections through the proxy never carry a byte again, and nobody is told"),
}
"""Every kind of fault. Those without a rate are properties of the whole run."""

LOSSY = frozenset({"flushall"})
"""Kinds that take the server's data away."""

DEFAULT: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in LOSSY | {"half-open", BACKLOG, PURGE})
"""The kinds of a run that does not say otherwise: what toolbus promises to survive without losing anything."""

# An agent that could not be heard of for fifteen seconds counts as gone; faults that silence one may not add up to that.
_OUTAGE_EVERY = 7.0
# Faults begin when the first calls run, and end while there are still some.
_FIRST, _LAST = 0.04, 0.95


class Fault(msgspec.Struct, frozen=True):
    """One fault: ``at`` seconds from the start, of ``kind``, for ``lasts`` seconds; ``pick`` (0 to 1) chooses target and manner."""

    at: float
    kind: str
    lasts: float
    pick: float


def schedule(seed: int, seconds: float, kinds: Iterable[str], *, lease: float, intensity: float = 1.0) -> list[Fault]:
    """The faults of a run, in order of time; the same arguments give the same faults."""
    chance = random.Random(f"faults {seed}")
    chosen = [kind for kind in KINDS if kind in set(kinds)]
    ordinary = {kind: _count(kind, seconds, intensity) for kind in chosen if not KINDS[kind].outage}
    found = [_fault(chance, kind, chance.uniform(_FIRST, _LAST) * seconds, lease) for kind, count in ordinary.items() for _ in range(count)]
    outages = [kind for kind in chosen if KINDS[kind].outage for _ in range(_count(kind, seconds, intensity))]
    chance.shuffle(outages)
    outages = outages[: max(1, int(seconds * (_LAST - _FIRST) / _OUTAGE_EVERY))]
    room = seconds * (_LAST - _FIRST) / max(1, len(outages))
    for number, kind in enumerate(outages):
        at = seconds * _FIRST + (number + chance.uniform(0.0, 0.3)) * room
        found.append(_fault(chance, kind, at, lease))
    return sorted(found, key=lambda fault: fault.at)


def _count(kind: str, seconds: float, intensity: float) -> int:
    rate = KINDS[kind].per_minute * intensity
    return max(1, round(rate * seconds / 60)) if rate else 0


def _fault(chance: random.Random, kind: str, at: float, lease: float) -> Fault:
    least, most = KINDS[kind].lasts
    return Fault(round(at, 3), kind, round(chance.uniform(least, most) * lease, 3), chance.random())
