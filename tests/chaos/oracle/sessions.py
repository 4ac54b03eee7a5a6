"""Rules about sticky sessions: their state is in one process at a time, and what a later one has answered is not taken back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import Ended
from tests.chaos.oracle.case import Case, Violation
from tests.chaos.plan import Planned

_SEAT = re.compile(r"([^:]+):(\d+\.\d+):(\d+)")


def sessions(case: Case) -> Iterator[Violation]:
    """The answers of one session, as its agent got them, come from one life of its state after the other, each counting every call once."""
    for session, records in answers(case).items():
        lives: list[str] = []
        counts: dict[str, set[int]] = defaultdict(set)
        for ended in records:
            token, count = _seat(ended)
            if token in lives[:-1]:
                told = f"{token.partition('.')[0]} answered after {lives[-1].partition('.')[0]} had taken the session {session} over"
                yield Violation("session", told, ended.key)
            elif token not in lives:
                lives.append(token)
            if count in counts[token]:
                yield Violation("session", f"the {count}. call of the session {session} was answered twice by {token}", ended.key)
            counts[token].add(count)


def answers(case: Case) -> dict[str, list[Ended]]:
    """The successful calls of each session, in the order in which their agents got the answers."""
    found: dict[str, list[Ended]] = defaultdict(list)
    for key, records in case.ended.items():
        session = case.planned[key].session
        if session:
            found[session] += [ended for ended in records if ended.success and not bad_seat(case.planned[key], ended.output or "")]
    return {session: sorted(records, key=lambda ended: ended.at) for session, records in found.items()}


def bad_seat(planned: Planned, text: str) -> str:
    """What is wrong with an output of a session's tool."""
    match = _SEAT.fullmatch(text)
    return "" if match is not None and match[1] == planned.work else f"output {text[:80]!r} is no answer of a session's"


def _seat(ended: Ended) -> tuple[str, int]:
    _, token, count = (ended.output or "").rsplit(":", 2)
    return token, int(count)
