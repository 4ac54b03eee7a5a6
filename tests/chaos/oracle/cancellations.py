"""Rules about calls whose caller wants no answer any more: cancelled ones, and those of agents that died."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import Begun, Hit
from tests.chaos.oracle.case import MARGIN, Case, Violation, noticed
from tests.chaos.plan import Planned, inner
from tests.chaos.schedule import LOSSY

# While these last, word of a cancellation may not come through.
_SILENCING = frozenset({"server-stop", "server-kill", "client-pause", "partition", "swallow", "delay", "stop", "agent-stop", "half-open"})
# Steps in which an agent says so, or behind which it will.
_SAYING = ("at publish/publish", "at publish/share", "at publish/cancel")
# What was refused is tried again after so many seconds at most.
_AGAIN = 1.0
# A worker that sends to an agent that has just gone makes its reply stream anew, for an agent that may be there; the others take that as a
# sign of life as long as it lives.
_MADE_ANEW = 5.0


def cancellations(case: Case) -> Iterator[Violation]:
    """A cancelled call ends at once at its caller, and its handler soon; so does that of a caller that died."""
    silences = _silences(case)
    for key, planned in case.planned.items():
        cancelled = case.cancelled.get(key)
        for ended in case.ended.get(key, ()) if cancelled is not None else ():
            if cancelled is not None and ended.at > _by(case, silences, cancelled.at, cancelled.pid):
                yield Violation("cancelled", f"its caller had to wait {ended.at - cancelled.at:.1f} s for the end", key)
        # Others may still wait for a call that is shared.
        since = None if planned.shares else _unwanted_since(case, silences, planned)
        if since is None:
            continue
        for begun in case.begun.get(key, ()):
            yield from _late(case, silences, begun, since)
        for begun in case.begun.get(inner(key), ()):
            yield from _late(case, silences, begun, _passed_on(case, key, since))


def _late(case: Case, silences: list[_Silence], begun: Begun, since: float) -> Iterator[Violation]:
    # What the server lost, nobody can cancel: it ends with its time. What could not be ended then, or whose cancellation is lost, is run
    # once more: when nobody has renewed it for two leases, no lease is judged for one after a silence, and a worker has room for it.
    again = 3 * case.options.lease + MARGIN
    if any(hit.kind in LOSSY and hit.until + again > min(begun.at, since) for hit in case.history.of(Hit)):
        return
    agent = case.issued[begun.key.removesuffix(inner(""))].pid
    # Whether a caller is gone is asked before a call begins that has waited, and all the time while it runs.
    over, heard = case.over(begun), max(since, begun.at)
    if over > _by(case, silences, heard, begun.pid, agent):
        what = f"attempt {begun.attempt} in process {begun.pid} ran until {over - heard:.1f} s after nobody wanted it any more"
        yield Violation("cancelled", what, begun.key)
    if begun.key in case.cancelled and begun.at > _by(case, silences, since, begun.pid, agent):
        late = begun.at - case.cancelled[begun.key].at
        yield Violation(
            "cancelled", f"attempt {begun.attempt} in process {begun.pid} began {late:.1f} s after the call was cancelled", begun.key
        )


def _unwanted_since(case: Case, silences: list[_Silence], planned: Planned) -> float | None:
    """Since when nobody waits for a call; None when somebody did until its end."""
    issued, cancelled = case.issued.get(planned.key), case.cancelled.get(planned.key)
    if cancelled is not None:
        gone = case.exits.get(cancelled.pid)
        # What it said while nobody heard it may have died with it.
        if gone is None or gone.at > _by(case, silences, cancelled.at, cancelled.pid):
            return cancelled.at
        unheard = any(
            began <= gone.at and (until > cancelled.at or until + _AGAIN > gone.at) and (not whose or cancelled.pid in whose)
            for began, until, whose in silences
        )
        # Or it died as it said so, or while it waited for the answer to its publication, behind which a cancellation is sent.
        unheard = unheard or any(hit.what.endswith(_SAYING) and cancelled.pid in hit.pids for hit in case.history.of(Hit))
        return gone.at + _unnoticed(case, gone.pid, gone.at) if unheard else cancelled.at
    if issued is None or planned.key in case.ended or not case.abandoned(issued):
        return None
    gone = case.exits[issued.pid]
    return gone.at + _unnoticed(case, gone.pid, gone.at)


def _passed_on(case: Case, key: str, since: float) -> float:
    """Since when nobody waits for what a handler has called: a worker that died while it ran, or right after it, is a caller that died."""
    runs = [each for each in case.begun.get(key, ()) if each.pid in case.exits]
    gone = [case.exits[each.pid].at for each in runs if case.exits[each.pid].at <= case.over(each) + _AGAIN]
    return max([since, *(at + _unnoticed(case) for at in gone)])


def _unnoticed(case: Case, caller: int = 0, at: float = 0.0) -> float:
    """For how long a caller that died may count as alive: one worker after the other may make its stream anew, or one that replaced it."""
    keys = [issued.key for issued in case.issued.values() if issued.pid == caller]
    answering = {begun.pid for key in keys for begun in case.begun.get(key, ()) if case.over(begun) >= at}
    return max(case.options.agent_life + _MADE_ANEW * max(1, case.options.workers - 1, len(answering)), 2 * case.options.lease)


_Silence = tuple[float, float, frozenset[int]]
"""From when until when nothing is heard, of these processes, or of all."""


def _silences(case: Case) -> list[_Silence]:
    hits = [hit for hit in case.history.of(Hit) if hit.kind in _SILENCING]
    found = [(hit.at, noticed(hit), frozenset(hit.pids)) for hit in hits]
    blocks = [begun for begun in case.history.of(Begun) if begun.key in case.planned and case.planned[begun.key].tool == "block"]
    found += [(begun.at, case.over(begun), frozenset({begun.pid})) for begun in blocks]
    return sorted(found, key=lambda silence: silence[0])


def _by(case: Case, silences: list[_Silence], since: float, *pids: int) -> float:
    """By when word of something must have come to these processes."""
    bound = 2 * case.options.lease + MARGIN
    for began, until, whose in silences:
        if began <= since + bound and until > since and (not whose or whose.intersection(pids)):
            since = until
    return since + bound
