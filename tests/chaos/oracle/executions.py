"""Rules about runs of handlers: how many there are, and how long they last."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.chaos.history import Hit, Left
from tests.chaos.oracle.case import MARGIN, Case, Violation, noticed
from tests.chaos.plan import inner
from tests.chaos.schedule import LOSSY

# What takes no living worker's lease or entries away.
_HEARABLE = frozenset({"kill", "term", "agent-kill", "agent-stop", "malformed", "script-flush"})


def executions(case: Case) -> Iterator[Violation]:
    """Deliveries are bounded, and work that is once is done once. What a leaving worker hands back is still the same delivery."""
    back = _handed_back(case)
    for key, begun in case.begun.items():
        planned = case.work(key)
        if planned is None:
            yield Violation("executions", "a handler ran for a call that nobody planned", key)
            continue
        # Each recreated group counts deliveries anew.
        fresh = sum(
            begun[0].at - MARGIN < hit.at < begun[-1].at for hit in case.history.of(Hit) if hit.kind in {"group-destroy", "flushall"}
        )
        # A failure frees the idempotency key, so that the next call with it runs anew.
        limit = case.options.max_deliveries * (1 + fresh) * (1 + case.failures(key))
        # Each execution of a nested call makes a call of its own.
        limit *= limit if key != planned.work else 1
        delivered = sum((key, record.pid, record.attempt) not in back for record in begun)
        if delivered > limit:
            yield Violation("executions", f"the handler began {delivered} times, more than {limit}", key)
        # A server that was emptied has forgotten the key, so that a later call with it is another one.
        emptied = any(begun[0].at - MARGIN < hit.at < begun[-1].at for hit in case.history.of(Hit) if hit.kind == "flushall")
        if planned.tool == "pay" and len(begun) > (len({record.call for record in begun}) if emptied else 1):
            told = ", ".join(f"attempt {record.attempt} in {record.pid} at {record.at:.3f}" for record in begun)
            yield Violation("executions", f"once work began {len(begun)} times: {told}", key)


def _handed_back(case: Case) -> set[tuple[str, int, int]]:
    """The runs that were cut off in workers which had been told to leave: key, process, attempt."""
    told = case.told_to_leave
    cut_off = [left for left in case.history.of(Left) if left.how == "cancelled" and left.at >= told.get(left.pid, float("inf"))]
    return {(left.key, left.pid, left.attempt) for left in cut_off}


def overlaps(case: Case) -> Iterator[Violation]:
    """No run of a call begins while an earlier one goes on in a worker that was there to be heard all the time, draining or not."""
    hits = [hit for hit in case.history.of(Hit) if hit.kind not in _HEARABLE]
    within = 3 * case.options.lease + MARGIN
    for key, records in case.begun.items():
        for one, following in itertools.pairwise(records):
            over = case.over(one)
            if one.call != following.call or over <= following.at or _blocked(case, one.pid, following.at - within):
                continue
            recent = [hit for hit in hits if hit.at < following.at and noticed(hit) > following.at - within]
            # One that stood still begins what was taken from it meanwhile, and notices with its next word to the server.
            if all(hit.pids and not {one.pid, following.pid} & set(hit.pids) for hit in recent):
                told = f"attempt {following.attempt} began in process {following.pid} while attempt {one.attempt} ran in {one.pid}"
                yield Violation("executions", told, key)


def _blocked(case: Case, pid: int, since: float) -> bool:
    """Return whether a handler may have held the process's event loop at some time after ``since``."""
    return any(
        begun.pid == pid and begun.at + planned.arguments["seconds"] > since
        for key, planned in case.planned.items()
        if planned.tool == "block"
        for begun in case.begun.get(key, ())
    )


# Seconds for which a question may wait for a person.
_ASKS = 60.0


def lifetimes(case: Case) -> Iterator[Violation]:
    """No execution goes on when every call has ended, nor much longer than its call's time."""
    quiet = case.states.get("quiet")
    for key, records in case.begun.items():
        planned = case.work(key)
        for begun in records:
            over = case.over(begun)
            # What the server lost, nobody can cancel: it ends with its time, also when its worker had only taken it then.
            issued = case.issued.get(key.removesuffix(inner("")), begun)
            lost = any(hit.kind in LOSSY and hit.until > min(issued.at, begun.at) for hit in case.history.of(Hit))
            if quiet is not None and over > quiet.at and begun.at < quiet.at and not lost:
                yield Violation(
                    "executions", f"attempt {begun.attempt} still runs in process {begun.pid} although every call has ended", key
                )
                continue
            if planned is None or case.left(begun) is None:
                continue
            allowed = planned.timeout + (_ASKS if planned.tool == "ask" else 0.0) + MARGIN + 2 * case.options.lease
            if over - begun.at > allowed:
                yield Violation("executions", f"attempt {begun.attempt} ran for {over - begun.at:.1f} s of {planned.timeout:g} s", key)
