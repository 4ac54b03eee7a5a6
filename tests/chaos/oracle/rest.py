"""Rules about what is left: on the server, in memory, and of processes."""

from __future__ import annotations

import signal
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.chaos import snapshot
from tests.chaos.history import Begun, Hit, Left, Sample
from tests.chaos.oracle.case import Case, Violation

# What a poisoned process may die of: os._exit(7), and a segmentation fault.
_DEADLY = {"crash": 7, "segfault": -11}
# Keys that people put there, and may stay for good.
KEPT = {"reg:items", "reg:recorded", "reg:pending", "reg:groups", "reg:pins"}


def rest(case: Case) -> Iterator[Violation]:
    """Yield a violation for everything that the server holds at the end and may not hold."""
    # A server that has lost the end of a pause has nobody look at that service.
    paused = case.options.lossy and any(hit.what.startswith("pause ") for hit in case.history.of(Hit))
    for name in ("quiet", "closed", "later"):
        state = case.states.get(name)
        if state is None:
            yield Violation("rest", f"the run ended before the server was looked at ({name})")
            continue
        for queue in state.queues:
            if (queue.length or queue.pending) and not paused:
                yield Violation("rest", f"{name}: {queue.name} holds {queue.length} entries, {queue.pending} of them pending")
        for dead in state.dead if name == "quiet" else ():
            yield Violation("rest", f"{name}: the dead instance {dead} is still in the registry")
        for stranger in () if paused else snapshot.strangers(state):
            yield Violation("rest", f"{name}: the consumer {stranger} belongs to nobody alive")
        for key in state.keys:
            if key.ttl == -1 and key.name not in KEPT:
                yield Violation("rest", f"{name}: the key {key.name} has no TTL")
    later = case.states.get("later")
    for key in later.keys if later is not None else ():
        if key.name.startswith("rsp:"):
            yield Violation("rest", f"later: the reply stream {key.name} outlives its agent (TTL {key.ttl} ms)")
    for instance in later.live if later is not None else ():
        yield Violation("rest", f"later: the instance {instance} has a lease after its worker left")


def memory(case: Case) -> Iterator[Violation]:
    """Nobody grows beyond what was reached in the first third of its life, half as much again, and a margin."""
    samples = case.history.of(Sample)
    series: dict[str, list[int]] = defaultdict(list)
    for sample in samples:
        series["server"].append(sample.server)
        for name, size in sample.processes.items():
            if size:
                series[name].append(size)
    for name, sizes in series.items():
        if len(sizes) < 9:
            continue
        third = len(sizes) // 3
        early, late = max(sizes[:third]), statistics.median(sizes[-third:])
        if late > early * 1.5 + case.options.memory * 1_048_576:
            yield Violation("memory", f"{name} grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")


def processes(case: Case) -> Iterator[Violation]:
    """Every death has its cause."""
    open_runs: dict[int, Counter[str]] = defaultdict(Counter)
    for begun in case.history.of(Begun):
        open_runs[begun.pid][begun.key] += 1
    for left in case.history.of(Left):
        open_runs[left.pid][left.key] -= 1
    for gone in case.exits.values():
        # A worker that is terminated within its first moments has not yet said what it does then.
        if gone.wanted and (gone.status in {0, -9} or (gone.status == -signal.SIGTERM and gone.pid not in open_runs)):
            continue
        running = {case.planned[key].tool for key, count in open_runs[gone.pid].items() if count > 0 and key in case.planned}
        if not any(tool in running and status == gone.status for tool, status in _DEADLY.items()):
            yield Violation("processes", f"{gone.role} {gone.pid} ended with {gone.status} by itself")
    closed = case.states.get("closed")
    for pid in closed.workers if closed is not None else ():
        yield Violation("processes", f"worker {pid} was told to go and did not")
