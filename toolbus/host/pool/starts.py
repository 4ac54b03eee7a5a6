"""``Starts``: which source of a tool is started next, and when."""

from __future__ import annotations

import random
from collections.abc import Callable

from toolbus.host.pool.member import Timing

# Deaths in a row, each soon after its start, after which another source is tried. One call that kills its program does so twice.
_SHORT_LIVES = 3
_MOST_EXPONENT = 30


class Starts:
    """Counts failures in a row, over all sources of a tool.

    Args:
        sources: indexes of the sources that may be started here.
        restarts: failures in a row until the tool counts as failed.
        timing: the delays.
        clock: returns monotonic seconds.
        chance: draws the jitter.

    Attributes:
        active: index of the source that is started next, or runs.
        failures: how many starts or instances failed since one has run well.
        last_error: one line, why the last one failed.
        permanent: whether it failed for a reason that no further try can help, until somebody mends it.
        due: when the next start may be, by ``clock``.
    """

    def __init__(self, sources: tuple[int, ...], restarts: int, timing: Timing, clock: Callable[[], float], chance: random.Random) -> None:
        self._sources = sources
        self._restarts = max(1, restarts)
        self._timing = timing
        self._clock = clock
        self._chance = chance
        self._short_lives = 0
        self.active = sources[0] if sources else 0
        self.failures = 0
        self.last_error = ""
        self.permanent = False
        self.due = 0.0

    @property
    def given_up(self) -> bool:
        """True if the tool counts as failed."""
        return self.permanent or self.failures >= self._restarts

    @property
    def wait(self) -> float:
        """Seconds until the next start may be."""
        return max(0.0, self.due - self._clock())

    def order(self) -> tuple[int, ...]:
        """Return the sources in the order in which one start tries them."""
        if self.active not in self._sources:
            return self._sources
        place = self._sources.index(self.active)
        return self._sources[place:] + self._sources[:place]

    def started(self, source: int, passed_over: str) -> None:
        """Take note that a source has become ready; ``passed_over`` says why those before it could not be started."""
        self.active = source
        self.permanent = False
        self.last_error = passed_over or self.last_error

    def not_started(self, error: str, *, permanent: bool = False) -> None:
        """Take note that no source could be started; the first one is tried first again."""
        self.active = self._sources[0] if self._sources else 0
        self._failed(error, permanent=permanent)

    def died(self, error: str, *, settled: bool) -> None:
        """Take note that an instance ended by itself; another source is next when that happens again and again soon after its start."""
        self._short_lives = 0 if settled else self._short_lives + 1
        if self._short_lives >= _SHORT_LIVES:
            self._leave()
        self._failed(error)

    def unhealthy(self, error: str) -> None:
        """Take note that an instance failed its health checks; another source is next."""
        self._leave()
        self._failed(error)

    def ran_well(self) -> None:
        """Forget the failures, because an instance has run for a while."""
        self.failures, self.due, self._short_lives, self.permanent = 0, 0.0, 0, False

    def reset(self) -> None:
        """Begin anew with the first source."""
        self.ran_well()
        self.last_error = ""
        self.active = self._sources[0] if self._sources else 0

    def _leave(self) -> None:
        self._short_lives = 0
        order = self.order()
        self.active = order[1] if len(order) > 1 else self.active

    def _failed(self, error: str, *, permanent: bool = False) -> None:
        self.failures += 1
        self.permanent = permanent
        self.last_error = error
        timing = self._timing
        delay = min(timing.longest_delay, timing.first_delay * 2.0 ** min(self.failures - 1, _MOST_EXPONENT))
        self.due = self._clock() + delay * self._chance.uniform(0.5, 1.0)
