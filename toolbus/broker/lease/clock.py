"""Server time as seen from a local monotonic clock, and whether it can be trusted."""

from __future__ import annotations

import time

# Beats come every third of a lease. A stall that makes a lease end without its owner's fault lasts two thirds.
_RECENT = 0.6


class ServerClock:
    """Maps server milliseconds to local monotonic seconds.

    Taken work runs on local monotonic deadlines, so a constant skew between machines
    does no harm. When server time runs ahead of the local clock the server was stalled
    (or its clock stepped): then other workers' leases may look ended although they are
    alive, and nobody may reap for one lease.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._offset = self._middle = 0.0
        self._known = False
        self._quiet_until = self._heard = 0.0

    def observe(self, server_ms: float, asked: float, answered: float) -> None:
        """Take in a server time that was asked for and answered at these monotonic times."""
        offset = server_ms / 1000 - answered
        if self._known:
            ahead = server_ms / 1000 - asked - self._offset
            # What kept this answer away for so long may have kept others' beats away, and theirs are still to come.
            if ahead > self._lease / 3 or answered - self._heard > _RECENT * self._lease:
                self.hush()
        self._offset = offset
        self._middle = server_ms / 1000 - (asked + answered) / 2
        self._heard = answered
        self._known = True

    def hush(self) -> None:
        """No reaping for one lease from now: after a (re)connect, or after a stall."""
        self._quiet_until = time.monotonic() + self._lease

    @property
    def trusted(self) -> bool:
        """Whether ended leases may be acted on."""
        now = time.monotonic()
        # Who has not heard of the server himself for so long can't tell others' silence from the server's.
        return self._known and now >= self._quiet_until and now - self._heard < _RECENT * self._lease

    def server_ms(self) -> float:
        """The server's time now, in milliseconds, as far as is known here."""
        return (time.monotonic() + self._middle) * 1000

    @property
    def offset(self) -> float:
        """What is to be taken from a server time (seconds) for the local monotonic one; deadlines come late by an answer's way at most."""
        return self._offset

    def now_ms(self) -> float:
        """The server's time now, in milliseconds, by ``offset``."""
        return (time.monotonic() + self._offset) * 1000
