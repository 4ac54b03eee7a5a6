"""The end of what has failed for so long that nobody can wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolbus.results import ToolbusError

# A worker that only beats looks alive. Its callers learn otherwise when it leaves, after so many leases and seconds without success.
_LEASES, _SECONDS = 3, 30.0
# The server refuses the writes of every process, and workers that went on trying serve at once when it accepts them again.
_FOR_ALL = frozenset({"MISCONF", "OOM"})


class Failing:
    """A step of a worker, which is given up when the server has refused it for long.

    Args:
        lease: seconds.
        failed: words for the failure, such as "no requests could be taken".
        give_up: called with the error that ends the worker.
        monotonic: the local clock, in seconds.

    Attributes:
        since: when the step began to fail; None while it succeeds. Who succeeds sets it.
    """

    def __init__(
        self, lease: float, failed: str, give_up: Callable[[ToolbusError], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = max(_LEASES * lease, _SECONDS)
        self._failed = failed
        self._give_up = give_up
        self._monotonic = monotonic
        self.since: float | None = None

    def refused(self, error: str) -> None:
        """Take in that the server has refused the step once more."""
        now = self._monotonic()
        if self.since is None or error.partition(" ")[0] in _FOR_ALL:
            self.since = now
        elif now - self.since >= self._most:
            self._give_up(ToolbusError(f"{self._failed} for {now - self.since:.0f} s: {error}"))
