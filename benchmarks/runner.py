"""Run the measurements in rounds in which the peers take turns, so that a slow minute of the machine affects all of them."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import PeerSpec, Way, environment
from benchmarks.processes import Child, ChildError, child
from benchmarks.servers import Server
from benchmarks.workloads import Workload

READY_SECONDS = 30.0
START_SECONDS = 30.0  # until a client has its first answer; the contract's probe gives up earlier
DRAIN_SECONDS = 30.0
FAILURES = 2  # after this many rounds with a failure, a peer is left out of a workload


@dataclass(frozen=True)
class Plan:
    """A plan of measurements.

    Attributes:
        mode: ``quick`` or ``full``.
        peers: peers in any order; each round shuffles them.
        workloads: workloads in this order.
        rounds: number of repetitions of each measurement.
        seconds: length of one measurement.
        warmup: seconds of load before each measurement.
        seed: seed of the shuffling.
        levels: numbers of concurrent callers, instead of each workload's own.
        ways: how workers are started, and what they log.
    """

    mode: str
    peers: tuple[PeerSpec, ...]
    workloads: tuple[Workload, ...]
    rounds: int
    seconds: float
    warmup: float
    seed: int
    levels: tuple[int, ...] = ()
    ways: tuple[Way, ...] = ("quiet",)

    def levels_of(self, workload: Workload, spec: PeerSpec) -> list[int]:
        """Return the numbers of concurrent callers for a peer."""
        levels = self.levels or workload.levels(self.mode) or workload.full
        return [level for level in levels if level <= spec.most]

    def taking_part(self, workload: Workload) -> list[PeerSpec]:
        """Return the peers that offer a workload's operation."""
        return [spec for spec in self.peers if workload.operation in spec.offers]


@dataclass(frozen=True)
class Measurement:
    """One window of load on one peer; CPU is in µs per unit, latencies are in ms."""

    peer: str
    workload: str
    concurrency: int
    round: int
    rate: float = 0.0
    calls: int = 0
    errors: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    first_p50: float | None = None
    first_p99: float | None = None
    client_cpu: float | None = None
    worker_cpu: float | None = None
    server_cpu: float | None = None
    commands: float | None = None
    loop: str = ""
    failure: str = ""
    way: Way = "quiet"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Sample:
    """The counters at the start or the end of a window."""

    client: float
    worker: float
    server: float
    commands: int | None


@dataclass(frozen=True)
class _Visit:
    """One peer's turn in one round of one workload."""

    plan: Plan
    spec: PeerSpec
    way: Way
    workload: Workload
    round: int
    server: Server

    def measure(self, levels: list[int]) -> list[Measurement]:
        """Start the workers on an empty server and measure at each level."""
        if not levels or (self.workload.workers > 1 and self.spec.server == "none"):
            return []
        slots = max(levels) if self.workload.operation == "nap" else self.spec.slots
        self.server.reset()
        with contextlib.ExitStack() as stack:
            try:
                workers = [stack.enter_context(self._worker(slots)) for _ in range(self.workload.workers)]
            except ChildError as error:
                return [self._failed(level, str(error)) for level in levels]
            made: list[Measurement] = []
            for level in levels:
                made.append(self._measure_at(level, workers))
                if not made[-1].rate:  # a peer that does not answer would time out at every other level, too
                    return made
            return made

    @contextlib.contextmanager
    def _worker(self, slots: int) -> Iterator[Child]:
        spec, url = self.spec, self.server.url
        command = spec.worker(self.way, url, slots)
        with child(f"{spec.name}'s worker", command, grace=5.0, env=self._environment()) as process:
            # A peer's own program does not say so; the client tries until it answers.
            if self.way == "quiet" or not spec.shipped:
                process.expect("ready", READY_SECONDS)
            yield process

    def _measure_at(self, level: int, workers: list[Child]) -> Measurement:
        plan = self.plan
        with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
            out = Path(folder) / "figures.json"
            options = {"concurrency": level, "seconds": plan.seconds, "warmup": plan.warmup, "workload": self.workload.name}
            try:
                command = self.spec.command("client", self.way, url=self.server.url, **options, out=out)
                with child(f"{self.spec.name}'s client", command, env=self._environment()) as client:
                    client.expect("start", START_SECONDS + plan.warmup)
                    begin = self._sample(client, workers)
                    client.expect("end", plan.seconds + DRAIN_SECONDS)
                    end = self._sample(client, workers)
                    client.wait(DRAIN_SECONDS)
                figures = json.loads(out.read_text())
            except (ChildError, OSError, ValueError) as error:
                return self._failed(level, str(error))
        return self._measurement(level, figures, begin, end)

    def _environment(self) -> dict[str, str]:
        return {**environment(self.way, self.server.url), **self.server.variables, **dict(self.spec.variables)}

    def _sample(self, client: Child, workers: list[Child]) -> _Sample:
        return _Sample(client.cpu(), sum(worker.cpu() for worker in workers), self.server.process.cpu(), self.server.commands())

    def _failed(self, level: int, reason: str) -> Measurement:
        return Measurement(self.spec.name, self.workload.name, level, self.round, failure=reason, way=self.way)

    def _measurement(self, level: int, figures: dict[str, Any], begin: _Sample, end: _Sample) -> Measurement:
        units = figures["units"]
        if not units:
            return self._failed(level, figures["first_error"] or "no call finished in the window")
        failure = f"{figures['errors']} calls failed: {figures['first_error']}" if figures["errors"] else ""
        return Measurement(
            peer=self.spec.name,
            workload=self.workload.name,
            concurrency=level,
            round=self.round,
            rate=units / figures["seconds"],
            calls=figures["calls"],
            errors=figures["errors"],
            **{name: figures[name] for name in ("p50", "p90", "p99", "first_p50", "first_p99", "loop")},
            client_cpu=(end.client - begin.client) / units * 1e6,
            worker_cpu=(end.worker - begin.worker) / units * 1e6,
            server_cpu=(end.server - begin.server) / units * 1e6,
            commands=None if begin.commands is None or end.commands is None else (end.commands - begin.commands) / units,
            failure=failure,
            way=self.way,
        )


def run(plan: Plan, servers: dict[str, Server]) -> list[Measurement]:
    """Make every measurement of a plan; a failed one is in the list with its reason."""
    chance = random.Random(plan.seed)
    found: list[Measurement] = []
    failures: Counter[tuple[str, str, str]] = Counter()
    for number in range(plan.rounds):
        for workload in plan.workloads:
            turns = [(spec, way) for spec in plan.taking_part(workload) for way in plan.ways]
            chance.shuffle(turns)
            for spec, way in turns:
                levels = plan.levels_of(workload, spec)
                chance.shuffle(levels)
                if failures[spec.name, workload.name, way] >= FAILURES:
                    continue
                made = _Visit(plan, spec, way, workload, number, servers[spec.server]).measure(levels)
                failures[spec.name, workload.name, way] += any(one.failure for one in made)
                found += made
                _show(plan, spec, way, workload, number, made)
    return found


def _show(plan: Plan, spec: PeerSpec, way: Way, workload: Workload, number: int, made: list[Measurement]) -> None:
    ordered = sorted(made, key=lambda one: one.concurrency)
    figures = "  ".join(f"{one.concurrency}: {'failed' if one.failure else format(one.rate, ',.0f')}" for one in ordered)
    print(f"round {number + 1}/{plan.rounds}  {workload.name:<12} {spec.name:<15} {way:<8} {workload.unit}/s at {figures}", flush=True)
