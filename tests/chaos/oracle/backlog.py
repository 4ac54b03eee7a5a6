"""Rules about the backlog: requests without a caller, of which each is done all the same."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.backlog import SERVICE
from tests.chaos.history import Hit
from tests.chaos.oracle.case import Case, Violation

_NAMED = 5


def backlog(case: Case) -> Iterator[Violation]:
    """Each request was run, at most ``max_deliveries`` times for each consumer group there was, and nothing that nobody queued."""
    runs = case.history.runs
    queued = case.options.backlog
    if len(runs) != queued + 1:
        yield Violation("backlog", f"{queued} requests were queued, and {len(runs) - 1} are accounted for")
        return
    if runs[queued]:
        yield Violation("backlog", f"{runs[queued]} runs for numbers that nobody queued")
    groups = 1 + sum(hit.kind == "flushall" or (hit.kind == "group-destroy" and SERVICE in hit.what) for hit in case.history.of(Hit))
    most = case.options.max_deliveries * groups
    skipped = [] if case.options.lossy else [number for number in range(queued) if not runs[number]]
    repeated = [number for number in range(queued) if runs[number] > most]
    for numbers, what in ((skipped, "were never run"), (repeated, f"were run more than {most} times")):
        if numbers:
            yield Violation("backlog", f"{len(numbers)} of {queued} {what}: {', '.join(map(str, numbers[:_NAMED]))}, …")
