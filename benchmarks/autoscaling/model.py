"""A model of a scaled pool on a clock of its own: the same formulas and loads, with workers of the chart's size and no process at all.

It serves to compare policies: its figures do not depend on the machine. A call waits in one queue for a free slot; a worker serves some
seconds after it was asked for; one that is to go takes nothing more and ends with its last call.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from benchmarks.autoscaling.hpa import SYNC_PERIOD, Autoscaler
from benchmarks.autoscaling.keda import Activation
from benchmarks.autoscaling.loads import SHAPES, arrivals
from benchmarks.autoscaling.policy import CONCURRENCY, Policy

# Seconds after a load for which workers cost something, as long as they stay.
_AFTERWARDS = 300.0


class ModelPlan(NamedTuple):
    """The parts of a model that are the same for every policy.

    Attributes:
        slots: of one worker.
        seconds: that a call takes.
        workers: how many the greatest rate asks for.
        start: seconds from the decision until a worker serves.
        seed: of the random numbers.
    """

    slots: int = CONCURRENCY
    seconds: float = 2.0
    workers: int = 6
    start: float = 5.0
    seed: int = 1


class Modelled(msgspec.Struct):
    """The figures of one load in the model: as those of an outcome, with waiting times in seconds and the workers that were started."""

    load: str
    policy: Policy
    calls: int
    waited_p50: float
    waited_p99: float
    backlog: int
    workers: int
    changes: int
    started: int
    cost: float
    fixed: float


class _Worker:
    """A worker: when it was asked for, and how many calls it runs."""

    def __init__(self, asked: float) -> None:
        self.asked = asked
        self.running = 0
        self.serves = False
        self.leaves = False


class _Pool:
    """The queue and the workers of a model."""

    def __init__(self, plan: ModelPlan, size: int) -> None:
        self._plan = plan
        self.now = 0.0
        self.queue: deque[float] = deque()
        self.workers: list[_Worker] = []
        self.waits: list[float] = []
        self.cost = 0.0
        self.started = self.backlog = 0
        # What happens next: at which moment, a number that keeps the order, the worker, and whether it begins or a call of it ends.
        self.events: list[tuple[float, int, _Worker, bool]] = []
        self._number = 0
        for _ in range(size):
            self._start(0.0)

    @property
    def wanted(self) -> list[_Worker]:
        """The workers that are to stay."""
        return [worker for worker in self.workers if not worker.leaves]

    @property
    def length(self) -> int:
        """The requests that are queued and that run."""
        return len(self.queue) + sum(worker.running for worker in self.workers)

    def resize(self, size: int) -> None:
        """Ask for workers, or let the newest ones go."""
        wanted = self.wanted
        for _ in range(size - len(wanted)):
            self._start(self._plan.start)
        for worker in wanted[size:]:
            worker.leaves = True
            self._end(worker)

    def arrive(self) -> None:
        """Take in a call."""
        self.queue.append(self.now)
        self._fill()
        self.backlog = max(self.backlog, len(self.queue))

    def happen(self) -> None:
        """Let what comes next happen."""
        self.now, _, worker, begins = heapq.heappop(self.events)
        if begins:
            worker.serves = True
        else:
            worker.running -= 1
            self._end(worker)
        self._fill()

    def close(self) -> None:
        """Count what the workers have cost until now."""
        self.cost += sum(self.now - worker.asked for worker in self.workers)

    def _start(self, after: float) -> None:
        worker = _Worker(self.now)
        self.started += 1
        self.workers.append(worker)
        self._push(after, worker, begins=True)

    def _push(self, after: float, worker: _Worker, *, begins: bool) -> None:
        self._number += 1
        heapq.heappush(self.events, (self.now + after, self._number, worker, begins))

    def _end(self, worker: _Worker) -> None:
        if worker.leaves and not worker.running and worker in self.workers:
            self.workers.remove(worker)
            self.cost += self.now - worker.asked

    def _fill(self) -> None:
        for worker in self.workers:
            while self.queue and worker.serves and not worker.leaves and worker.running < self._plan.slots:
                self.waits.append(self.now - self.queue.popleft())
                worker.running += 1
                self._push(self._plan.seconds, worker, begins=False)


def modelled(name: str, plan: ModelPlan, policy: Policy) -> Modelled:
    """Return the figures of a load under a policy."""
    shape = SHAPES[name]
    rate = plan.workers * Policy().for_slots(plan.slots).stream_length / plan.seconds
    pool = _Pool(plan, policy.min_replicas)
    activation, autoscaler = Activation(policy), Autoscaler(policy)
    sizes = [policy.min_replicas]
    for moment, what in _moments(arrivals(shape, rate, 1.0, plan.seed), policy, shape.seconds):
        while pool.events and pool.events[0][0] <= moment:
            pool.happen()
        pool.now = moment
        size = len(pool.wanted)
        if what == "call":
            pool.arrive()
            continue
        if what == "poll":
            wanted = activation.look(moment, size, pool.length)
            autoscaler.changed(moment, wanted - size)
        else:
            wanted = autoscaler.decide(moment, size, pool.length)
        pool.resize(wanted)
        sizes.append(wanted)
    pool.close()
    waits = sorted(pool.waits)
    return Modelled(
        load=name,
        policy=policy,
        calls=len(waits),
        waited_p50=waits[len(waits) // 2],
        waited_p99=waits[int(0.99 * len(waits))],
        backlog=pool.backlog,
        workers=max(sizes),
        changes=sum(one != other for one, other in pairwise(sizes)),
        started=pool.started,
        cost=pool.cost,
        fixed=plan.workers * pool.now,
    )


def _moments(calls: Iterator[float], policy: Policy, until: float) -> Iterator[tuple[float, str]]:
    """Yield what happens from outside, in order: calls, and the two controllers' turns, which go on after the load for a while."""
    end = until + _AFTERWARDS
    polls = ((turn * policy.polling_interval, "poll") for turn in range(int(end / policy.polling_interval)))
    syncs = (((turn + 0.5) * SYNC_PERIOD, "sync") for turn in range(int(end / SYNC_PERIOD)))
    return heapq.merge(((moment, "call") for moment in calls), polls, syncs)
