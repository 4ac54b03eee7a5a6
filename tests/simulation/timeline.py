"""A run as a person reads it: time goes down, and each process has a column."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.history import Issued
from tests.simulation.driver import Outcome
from tests.simulation.world import EARLIEST, Moment

_WIDTH = 26
_MOST = 400


def timeline(outcome: Outcome, *, whole: bool = False) -> str:
    """Return what happened in a run; only the moments about the calls that were broken, and faults, unless it is to be ``whole``.

    Where no call was broken, those are about all calls.
    """
    keys = {violation.key for violation in outcome.violations if violation.key} or {record.key for record in outcome.history.of(Issued)}
    ids = {word for moment in outcome.trace for word in _ids(moment, keys)}
    chosen = [moment for moment in outcome.trace if whole or _matters(moment, keys | ids)][: 10**9 if whole else _MOST]
    names = list(dict.fromkeys(moment.who for moment in chosen))
    lines = [" " * 11 + "".join(f"{name:{_WIDTH}}" for name in names)]
    for moment in chosen:
        margin = " " * (_WIDTH * names.index(moment.who))
        lines.append(f"{moment.at - EARLIEST:10.6f} {margin}{moment.what}  {moment.about}"[: 11 + _WIDTH * len(names) + 120].rstrip())
    lines += [f"VIOLATION {each.rule} {each.key}: {each.what}" for each in outcome.violations]
    return "\n".join(lines)


def _ids(moment: Moment, keys: set[str]) -> Iterable[str]:
    if moment.what == "begun" and any(f"key={key} " in moment.about for key in keys):
        yield moment.about.rpartition("call=")[2]


def _matters(moment: Moment, words: set[str]) -> bool:
    return moment.what in {"fault", "hit", "exited", "started", "died", "faults are over"} or any(word in moment.about for word in words)
