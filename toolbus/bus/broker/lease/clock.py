"""Server time as seen from a local monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable

# Beats come every third of a lease. A stall that makes a lease end without its owner's fault lasts two thirds.
_RECENT = 0.6


class ServerClock:
    """Maps server milliseconds to local monotonic seconds.

    Taken work runs on local monotonic deadlines, so a constant skew between machines does no harm. When server time runs ahead of the
    local clock, the server was stalled or its clock stepped: then other workers' leases may look ended although they are alive. When it
    falls behind, leases that now end too late are ended (``_lease.lua``). So ended leases are not trusted for one lease.

    Args:
        lease: seconds.
        monotonic: the local clock, in seconds.

    Attributes:
        offset: seconds to subtract from a server time for the local monotonic one; deadlines come late by an answer's travel time at most.
    """

    def __init__(self, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._lease = lease
        self.offset = self._middle = 0.0
        self._known = False
        self._quiet_until = self._ahead_until = self._heard = 0.0

    def observe(self, server_ms: float, asked: float, answered: float) -> None:
        """Take in a server time that was asked for and answered at these monotonic times."""
        offset = server_ms / 1000 - answered
        if self._known:
            ahead = server_ms / 1000 - asked - self.offset
            # A delay that held this answer back may also hold back the beats of other workers, so they need time to arrive.
            if ahead > self._lease / 3:
                self._ahead_until = self.monotonic() + self._lease
            if abs(ahead) > self._lease / 3 or answered - self._heard > _RECENT * self._lease:
                self.distrust()
        self.offset = offset
        self._middle = server_ms / 1000 - (asked + answered) / 2
        self._heard = answered
        self._known = True

    def distrust(self) -> None:
        """Trust no ended lease for one lease from now: after a connect, or after a stall."""
        self._quiet_until = self.monotonic() + self._lease

    @property
    def ran_ahead(self) -> bool:
        """True for one lease after the server's time ran ahead: keys may have reached the ends of their lives before their time."""
        return self.monotonic() < self._ahead_until

    @property
    def trusted(self) -> bool:
        """True when ended leases may be acted on."""
        now = self.monotonic()
        # If we have not heard from the server recently, we cannot tell dead workers from a silent server.
        return self._known and now >= self._quiet_until and now - self._heard < _RECENT * self._lease

    def server_ms(self) -> float:
        """Return the server's time now, in milliseconds, as well as it is known here."""
        return (self.monotonic() + self._middle) * 1000

    def server_time(self, at: float) -> float:
        """Return the server's time, in seconds, at a local monotonic time."""
        return at + self._middle
