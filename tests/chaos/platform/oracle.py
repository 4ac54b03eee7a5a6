"""Judge a run: each broken promise in one line."""

from __future__ import annotations

import signal

from tests.chaos.platform.history import Ended, History
from tests.chaos.platform.tools import EFFECTS

_ALWAYS = {"ok", "unavailable", "tool_error"}
# Codes of a call that was lost with its program, or with its host.
_LOST = {"program_ended", "connection_lost", "not_reached", "tool_failed", "tool_closed", "frames_missing", "no_worker"}


def judge(history: History) -> list[str]:
    """Return what was broken; nothing when every promise was kept."""
    found = [f"call {call.number} of {call.tool} has not ended" for call in history.unended]
    for ended in history.ended:
        found += _flaws(ended, history.runs.get(ended.call.number, 0))
    found += history.orphans + history.stale + history.left
    # One that was just started has no handler of the signal yet, and no programs.
    found += [f"a host that was told to stop exited with {code}" for code in history.host_exits if code not in {0, -signal.SIGTERM}]
    if not any(ended.how == "ok" for ended in history.ended):
        found.append("no call was answered")
    return found


def _flaws(ended: Ended, runs: int) -> list[str]:
    call, effect = ended.call, EFFECTS[ended.call.tool]
    name = f"call {call.number} of {call.tool}"
    told = f"{ended.how} {ended.code}: {ended.message}"
    found = []
    may_be_unknown = effect == "once" or ended.code == "frames_missing"
    if ended.how not in _ALWAYS and not (ended.how == "outcome_unknown" and may_be_unknown):
        found.append(f"{name} ended as {told}")
    if ended.how == "tool_error" and ended.code not in _LOST:
        found.append(f"{name} failed although no call of it can: {told}")
    if ended.how == "ok" and not runs:
        found.append(f"{name} was answered and has never run")
    if effect == "once" and runs > 1:
        found.append(f"{name} ran {runs} times")
    if ended.how == "unavailable" and effect == "once" and runs:
        found.append(f"{name} was not run, its caller was told, and yet it ran: {told}")
    return found
