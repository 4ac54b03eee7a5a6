"""``History``: what happened in a run."""

from __future__ import annotations

import msgspec

from tests.chaos.platform.tools import Planned


class Ended(msgspec.Struct, frozen=True):
    """A call, and how it ended.

    Attributes:
        how: ``ok``, ``wrong`` for a success with another call's answer, or the error's type.
        code: of the error.
        message: of the error, or the wrong answer.
        seconds: that it took.
    """

    call: Planned
    how: str
    code: str = ""
    message: str = ""
    seconds: float = 0.0


class History(msgspec.Struct):
    """One run.

    Attributes:
        ended: the calls that ended.
        unended: the calls that did not.
        runs: how often the program of each call began to run it.
        kills: how many processes of each kind were killed.
        orphans: processes that outlived the host that started them.
        stale: routes of dead hosts after their leases.
        left: processes, routes or hosts after everything was told to stop.
        seconds: for which calls were made.
        host_exits: exit codes of hosts that were told to stop.
    """

    ended: list[Ended] = []
    unended: list[Planned] = []
    runs: dict[int, int] = {}
    kills: dict[str, int] = {}
    orphans: list[str] = []
    stale: list[str] = []
    left: list[str] = []
    seconds: float = 0.0
    host_exits: list[int] = []
