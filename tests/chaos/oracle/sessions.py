"""Rules about sticky sessions: their state is in one process at a time, and what a later one has answered is not taken back."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.chaos.history import Ended, Hit, Left
from tests.chaos.oracle.case import Case, Violation
from tests.chaos.plan import Planned

_SEAT = re.compile(r"([^:]+):(\d+\.\d+):(\d+)((?::[^:]+)*)")


def sessions(case: Case) -> Iterator[Violation]:
    """The answers of one session, as its agent got them, come from one life of its state after the other, each counting every call once.

    A worker that was told to leave still answers what it had begun.
    """
    everything = [ended for records in case.ended.values() for ended in records]
    for session, answered in answers(case.planned.values(), everything).items():
        lives: list[str] = []
        counts: dict[str, set[int]] = defaultdict(set)
        stays = case.planned[answered[0].key].tool == "stay"
        for ended in answered:
            token, count, _ = seat(ended)
            # What a worker still answers that was told to leave is neither late nor a new life.
            drains = _drains(case, token, ended.at)
            if token not in lives and not drains:
                # One beside the first is none that takes it over.
                if not (lives and _owner_was_lost(case, ended)):
                    lives.append(token)
            elif not drains and token != lives[-1] and not _owner_was_lost(case, ended):
                told = f"{_process(token)} answered after {_process(lives[-1])} had taken the session {session} over"
                yield Violation("session", told, ended.key)
            # A snapshot that the server has lost brings an older state back.
            if count in counts[token] and not (stays and case.options.lossy):
                yield Violation("session", f"the {count}. call of the session {session} was answered twice by {token}", ended.key)
            counts[token].add(count)
        if stays:
            yield from _restored(case, session, answered, lives)


def _owner_was_lost(case: Case, ended: Ended) -> bool:
    """Return whether the server lost whose the session is while a call ran, and may have given it to another worker beside the first.

    The first one may hear of that with its next beat only.
    """
    heard = case.options.lease / 3
    return any(ended.began < hit.until + heard and hit.at < ended.at for hit in case.history.of(Hit) if hit.kind == "flushall")


def _restored(case: Case, session: str, answered: list[Ended], lives: list[str]) -> Iterator[Violation]:
    """A state that outlives its workers has each call once, and its loss is told."""
    if case.options.lossy:
        return
    calls = [call.key for call in case.planned.values() if call.session == session]
    # Of a run that was cut off, or whose end was refused, the state has a part or all, and its call may run once more on it.
    again = {left.key for left in case.history.of(Left) if left.how != "done"}
    again |= {key for key in calls if max(Counter(begun.pid for begun in case.begun.get(key, ())).values(), default=0) > 1}
    for ended in answered:
        *_, twice = seat(ended)
        # What a group that is gone had ended runs once more, on a state that has it.
        if again.issuperset(twice) or "group-destroy" in case.options.faults:
            continue
        yield Violation("session", f"{', '.join(sorted(twice - again))} is twice in the state of the session {session}", ended.key)
    told = sum(ended.code == "session_lost" for key in calls for ended in case.ended.get(key, ()))
    if len(lives) > 1 + told and "agent-kill" not in case.options.faults:
        yield Violation("session", f"the state of the session {session} was lost, and no call was told", answered[-1].key)


def is_about_state(case: Case, planned: Planned, failed: Ended) -> bool:
    """Return whether a call of a session whose state outlives its workers may have failed for its state.

    Its worker died when the snapshot had the call, and before its caller had the answer. Or the server lost the snapshot, or a worker
    forgot it, since a call before this one was stopped. Or the server lost that the worker had the call, which then keeps no snapshot. Or
    it had no room for one, while the session was used.
    """
    if failed.code == "answer_lost":
        return bool(case.executions(planned.work))
    if failed.code == "session_moved":
        return bool(case.executions(planned.work)) and (case.options.lossy or "group-destroy" in case.options.faults)
    calls = [call.key for call in case.planned.values() if call.session == planned.session]
    before = [ended for key in calls for ended in case.ended.get(key, ())]
    first = min(case.issued[key].at for key in calls if key in case.issued)
    full = any("oom" in hit.what.lower() and first <= hit.until and hit.at <= failed.at for hit in case.history.of(Hit))
    stopped = any(not ended.success and ended.code != "session_lost" and ended.at <= failed.at for ended in before)
    return failed.code == "session_lost" and (case.options.lossy or stopped or full)


def answers(planned: Iterable[Planned], ended: Iterable[Ended]) -> dict[str, list[Ended]]:
    """The successful calls of each session, in the order in which their agents got the answers."""
    calls = {call.key: call for call in planned if call.session}
    found: dict[str, list[Ended]] = defaultdict(list)
    for record in sorted(ended, key=lambda ended: ended.at):
        call = calls.get(record.key)
        if call is not None and record.success and not bad_seat(call, record.output or ""):
            found[call.session].append(record)
    return found


def bad_seat(planned: Planned, text: str) -> str:
    """Return what is wrong with an output of a session's tool, or an empty text."""
    match = _SEAT.fullmatch(text)
    return "" if match is not None and match[1] == planned.work else f"output {text[:80]!r} is no answer of a session's"


def seat(ended: Ended) -> tuple[str, int, set[str]]:
    """The life of the session that answered, the number of the call in it, and the calls that are in it twice."""
    _, token, count, *twice = (ended.output or "").split(":")
    return token, int(count), set(twice)


def _process(token: str) -> int:
    return int(token.partition(".")[0])


def _drains(case: Case, token: str, at: float) -> bool:
    """Return whether the process of the life ``token`` had been told to leave by the time ``at``."""
    return case.told_to_leave.get(_process(token), float("inf")) <= at
