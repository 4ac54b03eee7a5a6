"""Compute medians, spreads and ratios of the measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers import PeerSpec, Way
from benchmarks.runner import Measurement


@dataclass(frozen=True)
class Row:
    """One peer at one number of callers: medians over the rounds.

    Attributes:
        low: rate of the slowest round.
        high: rate of the fastest round.
        to_peer: rate as a multiple of the fastest peer's over Redis.
        to_floor: rate as a share of the floor's.
        p50_to_peer: median latency as a multiple of the lowest among peers over Redis.
        p50_to_floor: median latency as a multiple of the floor's.
    """

    peer: str
    concurrency: int
    rounds: int
    rate: float
    low: float
    high: float
    p50: float | None
    p90: float | None
    p99: float | None
    first_p50: float | None
    client_cpu: float | None
    worker_cpu: float | None
    server_cpu: float | None
    commands: float | None
    errors: int
    to_peer: float | None = None
    to_floor: float | None = None
    p50_to_peer: float | None = None
    p50_to_floor: float | None = None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(value: float | None, base: float | None) -> float | None:
    """Return a quotient, or None where there is none."""
    return value / base if value is not None and base else None


def rows(measurements: Iterable[Measurement], workload: str, specs: dict[str, PeerSpec], way: Way) -> list[Row]:
    """Return a workload's rows of one way, by number of callers and then by rate."""
    groups: dict[tuple[int, str], list[Measurement]] = {}
    for one in measurements:
        if one.workload == workload and one.way == way and one.rate:
            groups.setdefault((one.concurrency, one.peer), []).append(one)
    found: list[Row] = []
    for level in sorted({level for level, _ in groups}):
        plain = [_row(peer, level, ones) for (at, peer), ones in groups.items() if at == level]
        found += sorted(_compared(plain, specs), key=lambda row: -row.rate)
    return found


def _row(peer: str, level: int, ones: list[Measurement]) -> Row:
    rates = [one.rate for one in ones]
    return Row(
        peer=peer,
        concurrency=level,
        rounds=len(ones),
        rate=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        p50=median(one.p50 for one in ones),
        p90=median(one.p90 for one in ones),
        p99=median(one.p99 for one in ones),
        first_p50=median(one.first_p50 for one in ones),
        client_cpu=median(one.client_cpu for one in ones),
        worker_cpu=median(one.worker_cpu for one in ones),
        server_cpu=median(one.server_cpu for one in ones),
        commands=median(one.commands for one in ones),
        errors=sum(one.errors for one in ones),
    )


def _compared(plain: list[Row], specs: dict[str, PeerSpec]) -> list[Row]:
    rivals = [row for row in plain if specs[row.peer].role == "peer" and specs[row.peer].server == "redis"]
    floor = next((row for row in plain if specs[row.peer].role == "floor"), None)
    best_rate = max((row.rate for row in rivals), default=None)
    best_p50 = min((row.p50 for row in rivals if row.p50 is not None), default=None)
    return [
        Row(
            **{
                **vars(row),
                "to_peer": ratio(row.rate, best_rate),
                "to_floor": ratio(row.rate, floor.rate if floor else None),
                "p50_to_peer": ratio(row.p50, best_p50),
                "p50_to_floor": ratio(row.p50, floor.p50 if floor else None),
            }
        )
        for row in plain
    ]
