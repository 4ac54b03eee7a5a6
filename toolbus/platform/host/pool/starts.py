"""``Starts``: which source of a tool is started next, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.support.display import one_line
from toolbus.bus.support.safe_text import described
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Runner
from toolbus.platform.host.pool.member import Timing
from toolbus.platform.records import RecordedTool, SourceType, ToolSource

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


_MOST_REASON = 500


class Starter(NamedTuple):
    """Starts instances of a tool.

    Attributes:
        record: the tool.
        runners: the kinds of sources that this host can run.
        timing: how long a start may take.
        line: hears the program's output, and what becomes of it.
    """

    record: RecordedTool
    runners: Mapping[SourceType, Runner]
    timing: Timing
    line: Line

    async def start(self, starts: Starts) -> Instance | None:
        """Return an instance that is ready; None when no source can be started, which ``starts`` knows then."""
        flaws: list[str] = []
        permanent = True
        for index in starts.order():
            source = self.record.sources[index]
            place = f"source {index} ({source.type})"
            self.line(f"toolbus: starting {place}")
            begun = await self._begin(source)
            if not isinstance(begun, CannotStart):
                starts.started(index, one_line("; ".join(flaws), _MOST_REASON))
                self.line(f"toolbus: {place} is ready")
                return begun
            flaw, permanent = str(begun), permanent and begun.permanent
            flaws.append(flaw if len(self.record.sources) == 1 else f"{place}: {flaw}")
            self.line(f"toolbus: {place} could not be started: {flaw}")
            telemetry.log.warning("instance.not_started", tool=self.record.tool_id, source=index, kind=source.type, error=flaw)
        starts.not_started(one_line("; ".join(flaws), _MOST_REASON) or "no source of it may run at this host", permanent=permanent)
        return None

    async def _begin(self, source: ToolSource) -> Instance | CannotStart:
        """Return an instance of a source, or why there is none."""
        runner = self.runners.get(source.type)
        if runner is None:
            return CannotStart(f"this host can't run sources of the type {source.type!r}", permanent=True)
        within = source.ready_within + self.timing.start_within
        try:
            async with asyncio.timeout(within):
                return await runner.start(self.record, source, self.line)
        except TimeoutError:
            return CannotStart(f"it did not start within {within:g} s")
        except CannotStart as error:
            return CannotStart(one_line(str(error), _MOST_REASON), permanent=error.permanent)
        except Exception as error:  # noqa: BLE001 - one kind's bug must not end the supervision of the tool
            telemetry.log.exception("instance.start_bug", tool=self.record.tool_id, kind=source.type)
            return CannotStart(one_line(described(error), _MOST_REASON))
