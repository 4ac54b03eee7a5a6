"""Rules about sticky sessions: their state is in one process at a time, and what a later one has answered is not taken back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.chaos.history import Ended
from tests.chaos.oracle.case import Case, Violation
from tests.chaos.plan import Planned

_SEAT = re.compile(r"([^:]+):(\d+\.\d+):(\d+)")


def sessions(case: Case) -> Iterator[Violation]:
    """The answers of one session, as its agent got them, come from one life of its state after the other, each counting every call once.

    A worker that was told to leave still answers what it had begun.
    """
    everything = [ended for records in case.ended.values() for ended in records]
    for session, answered in answers(case.planned.values(), everything).items():
        lives: list[str] = []
        counts: dict[str, set[int]] = defaultdict(set)
        for ended in answered:
            token, count = seat(ended)
            # What a worker still answers that was told to leave is neither late nor a new life.
            drains = _drains(case, token, ended.at)
            if token not in lives and not drains:
                lives.append(token)
            elif not drains and token != lives[-1]:
                told = f"{_process(token)} answered after {_process(lives[-1])} had taken the session {session} over"
                yield Violation("session", told, ended.key)
            if count in counts[token]:
                yield Violation("session", f"the {count}. call of the session {session} was answered twice by {token}", ended.key)
            counts[token].add(count)


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


def seat(ended: Ended) -> tuple[str, int]:
    """The life of the session that answered, and the number of the call in it."""
    _, token, count = (ended.output or "").rsplit(":", 2)
    return token, int(count)


def _process(token: str) -> int:
    return int(token.partition(".")[0])


def _drains(case: Case, token: str, at: float) -> bool:
    """Return whether the process of the life ``token`` had been told to leave by the time ``at``."""
    return case.told_to_leave.get(_process(token), float("inf")) <= at
