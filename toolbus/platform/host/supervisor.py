"""``Supervisor``: starts the instances of a tool when they are wanted, and looks after them; ``Starts``: which source is next, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.support.display import one_line
from toolbus.bus.support.safe_text import described
from toolbus.bus.support.waiting import at_most, beside
from toolbus.bus.telemetry.background import keep_running
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Runner
from toolbus.platform.host import members as losses
from toolbus.platform.host.members import Member, Places, Timing
from toolbus.platform.records import RecordedTool, Running, State, ToolSource

# Deaths in a row, each soon after its start, after which another source is tried. One call that kills its program does so twice.
_SHORT_LIVES = 3
_MOST_EXPONENT = 30


class Starts:
    """Counts failures in a row, over all sources of a tool.

    Args:
        sources: indexes of the sources that may be started here.
        restarts: failures in a row until the tool counts as failed.
        timing: the delays.

    Attributes:
        active: index of the source that is started next, or runs.
        failures: how many starts or instances failed since one has run well.
        last_error: one line, why the last one failed.
        permanent: whether it failed for a reason that no further try can help, until somebody mends it.
        due: when the next start may be, in the loop's time.
    """

    def __init__(self, sources: tuple[int, ...], restarts: int, timing: Timing) -> None:
        self._sources = sources
        self._restarts = max(1, restarts)
        self._timing = timing
        self._clock = asyncio.get_running_loop().time
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
        self.due = self._clock() + delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


_MOST_REASON = 500


class Starter(NamedTuple):
    """Starts instances of a tool.

    Attributes:
        record: the tool.
        runner: starts an instance of a source.
        timing: how long a start may take.
        line: hears the program's output, and what becomes of it.
    """

    record: RecordedTool
    runner: Runner
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
        within = source.ready_within + self.timing.start_within
        try:
            async with asyncio.timeout(within):
                return await self.runner.start(self.record, source, self.line)
        except TimeoutError:
            return CannotStart(f"it did not start within {within:g} s")
        except CannotStart as error:
            return CannotStart(one_line(str(error), _MOST_REASON), permanent=error.permanent)
        except Exception as error:  # noqa: BLE001 - one kind's bug must not end the supervision of the tool
            telemetry.log.exception("instance.start_bug", tool=self.record.tool_id, kind=source.type)
            return CannotStart(one_line(described(error), _MOST_REASON))


_NEVER = float("inf")
_FIRST, _MOST = 0.02, 1.0


class GivenUp:
    """Looks whether a program has let go of calls that were cancelled, or had reached their deadlines.

    Args:
        member: the instance.
        within: seconds in which it has to let go of one, when no other call runs in it.

    Attributes:
        due: when to look next, in the loop's time.
    """

    def __init__(self, member: Member, within: float) -> None:
        self._member = member
        self._within = within
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._count = 0
        self._pause = _FIRST
        self.due = _NEVER

    async def look(self) -> bool:
        """Look if it is time; return whether places have become free."""
        member = self._member
        if not member.held and self.due == _NEVER:
            return False
        before = member.held
        count = await member.instance.unfinished()
        # Calls that were given up meanwhile are looked for the next time.
        member.held += count - before
        now = self._loop.time()
        if not count or count < self._count or not self._count:
            self._since, self._pause = now, _FIRST
        self._count = count
        self.due = now + self._pause if member.held else _NEVER
        self._pause = min(_MOST, self._pause * 2)
        return count < before

    @property
    def is_stuck(self) -> bool:
        """True if it has not let go of one in time, and no other call would be lost with it."""
        return self._count > 0 and not self._member.calls and self._loop.time() >= self._since + self._within


_RESOLUTION = 0.001
# Health checks in a row that fail until an instance without calls is given up.
_FLAWS = 2


class End(NamedTuple):
    """Say why an instance is stopped: it ``died``, is ``unhealthy`` or ``stuck`` with a call that was given up, or was ``idle``."""

    kind: Literal["died", "unhealthy", "stuck", "idle"]
    reason: str = ""


class Watch:
    """Looks after one instance.

    Args:
        member: the instance.
        running: how the tool is run.
        timing: the times that the record does not say.
        may_idle: whether it may be stopped when it has no calls.
        on_well: called when it has settled, when it is no longer suspected, and when calls that were given up have left it.
    """

    def __init__(self, member: Member, running: Running, timing: Timing, may_idle: Callable[[], bool], on_well: Callable[[], None]) -> None:
        self._member = member
        self._timing = timing
        self._may_idle = may_idle
        self._on_well = on_well
        self._loop = asyncio.get_running_loop()
        self._idle_stop = running.idle_stop if running.idle_stop > 0 else _NEVER
        self._every = running.health_every if running.health_every > 0 else _NEVER
        self._check = self._loop.time() + self._every
        self._given_up, self._stop_within = GivenUp(member, running.stop_within), running.stop_within
        self._settles = member.started + timing.settled
        self._flaws = 0

    async def run(self) -> End:
        """Return why the instance is to be stopped, as soon as it is."""
        async with beside(self._member.instance.ended()) as ended:
            ended.add_done_callback(lambda _: self._member.look.set())
            while True:
                await self._wait()
                if ended.done():
                    return End("died", _text_of(ended) or "it ended")
                if self._is_idle():
                    return End("idle")
                if await self._given_up.look():
                    self._on_well()
                if self._given_up.is_stuck:
                    return End("stuck", f"it went on with a call for {self._stop_within:g} s after its connection was closed")
                if self._is_check_due() and (flaw := await self._judge(ended)):
                    return End("unhealthy", flaw)

    async def _wait(self) -> None:
        """Wait until there is something to look at."""
        when, look = min(self._check, self._settles, self._idle_at(), self._given_up.due), self._member.look
        await _until(when, look)
        look.clear()
        if self._loop.time() >= self._settles:
            self._settles = _NEVER
            self._on_well()

    # -- idle -------------------------------------------------------------------------------------

    def _idle_at(self) -> float:
        return (self._loop.time() if self._member.calls else self._member.used) + self._idle_stop

    def _is_idle(self) -> bool:
        if self._loop.time() < self._idle_at():
            return False
        if self._may_idle():
            return True
        self._member.used = self._loop.time()
        return False

    # -- health -----------------------------------------------------------------------------------

    def _is_check_due(self) -> bool:
        member = self._member
        return self._loop.time() >= self._check or member.suspected > 0 or (member.doubted and not self._flaws)

    async def _judge(self, ended: asyncio.Task[str]) -> str:
        """Check its health; return why it is given up, or an empty text."""
        member, suspected = self._member, self._member.suspected
        flaw = await self._flaw(ended)
        self._check = self._loop.time() + self._every
        if ended.done():
            member.look.set()
            return ""
        if not flaw:
            self._flaws, member.doubted = 0, False
            # A call that was lost meanwhile needs an answer of its own.
            if suspected and suspected == member.suspected:
                member.suspected = 0
                self._on_well()
            return ""
        if member.suspected and not member.calls:
            return flaw
        if member.suspected or member.doubted or not member.calls:
            self._check = self._loop.time() + min(self._every, self._timing.again_after)
        if member.calls and not member.doubted:
            # A program that computes may have no time for a health check; one that nobody waits for has.
            return ""
        self._flaws += 1
        return flaw if self._flaws >= _FLAWS else ""

    async def _flaw(self, ended: asyncio.Task[str]) -> str:
        """Return why it is not well, or an empty text."""
        instance: Instance = self._member.instance
        async with beside(instance.health(answered=self._member.suspected > 0)) as check:
            await asyncio.wait({check, ended}, timeout=self._timing.health_within, return_when=asyncio.FIRST_COMPLETED)
            return _text_of(check) if check.done() else f"it did not answer a health check within {self._timing.health_within:g} s"


async def _until(when: float, look: asyncio.Event) -> None:
    """Wait until a time, or until there is something to look at; a timer may fire by the clock's resolution too early."""
    await at_most(None if when == _NEVER else when - asyncio.get_running_loop().time() + _RESOLUTION, look.wait())


def _text_of(task: asyncio.Task[str]) -> str:
    """Return what a task that is done has returned, or what it raised, as text."""
    if task.cancelled():
        return "it was cancelled from within"
    error = task.exception()
    return described(error) if error is not None else task.result()


class Supervisor:
    """Starts instances one at a time, so that no two starts are ever under way.

    Args:
        starter: starts one.
        starts: what is known of earlier starts.
        places: where the instances are, and who waits for one.
        timing: the times that the record does not say.
        on_change: called when the state may have changed; must return at once.
    """

    def __init__(self, starter: Starter, starts: Starts, places: Places, timing: Timing, on_change: Callable[[], None]) -> None:
        self._starter = starter
        self._starts = starts
        self._places = places
        self._timing = timing
        self._on_change = on_change
        self._tool = starter.record.tool_id
        self._how = starter.record.running
        self._loop = asyncio.get_running_loop()
        self._look = asyncio.Event()
        self._starting = False
        # An instance that was in use has failed, and another one is to take its place although no call waits.
        self._owed = False
        self._home: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True while it runs."""
        return self._home is not None

    @property
    def is_down(self) -> bool:
        """True if calls are refused until the next start may be."""
        return self._starts.given_up and not self._starting and not self._places.running and self._starts.wait > 0

    @property
    def state(self) -> State:
        """The state of the tool."""
        if self._places.running:
            return "running"
        if not self.is_open:
            return "stopped"
        if self._starting:
            return "starting"
        if self._starts.given_up:
            return "failed"
        return "stopped" if self._due() == _NEVER else "starting"

    def open(self) -> None:
        """Begin to start instances."""
        if self._home is None:
            self._home = asyncio.create_task(keep_running("instances", self._run, every=0), name=f"pool {self._tool}")

    async def aclose(self) -> None:
        """Stop all instances."""
        home, self._home = self._home, None
        if home is not None:
            home.cancel()
            await asyncio.wait({home})
            if not home.cancelled() and (error := home.exception()) is not None:
                raise error

    def look(self) -> None:
        """Look whether an instance is to be started."""
        self._look.set()

    # -- starts -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start an instance whenever one is due; own the tasks that look after them."""
        try:
            async with asyncio.TaskGroup() as keepers:
                while True:
                    while (due := self._due()) > self._loop.time():
                        self._look.clear()
                        await _until(due, self._look)
                    member = await self._start()
                    if member is not None:
                        keepers.create_task(self._keep(member), name=f"instance of {self._tool}")
        finally:
            # Those whose tasks were cancelled before they began, or while they stopped them.
            for member in tuple(self._places.members):
                await self._stop(member)

    def _due(self) -> float:
        """Return when the next instance is to be started, in the loop's time."""
        how, running, present = self._how, self._places.running, len(self._places.members)
        if not self.is_open or present >= max(1, how.instances, how.keep_warm):
            return _NEVER
        since = self._places.waiting_since
        if len(running) < how.keep_warm or (not running and (self._owed or since is not None)):
            return self._starts.due
        if since is not None and present < how.instances and not any(member.suspected for member in running):
            # A short wait is cheaper than another instance.
            return max(self._starts.due, since + self._timing.patience)
        return _NEVER

    async def _start(self) -> Member | None:
        """Start one instance, and give places at it to those who wait; tell them when that fails."""
        instance = None
        self._starting = True
        self._on_change()
        if not self._places.running:
            self._places.tell(starting(self._tool))
        try:
            instance = await self._starter.start(self._starts)
            if instance is not None:
                member = Member(instance, self._how, self._timing)
                self._places.members.append(member)
                self._owed = False
        finally:
            self._starting = False
            self._on_change()
        if instance is None:
            self._has_failed()
            return None
        telemetry.log.info("instance.started", tool=self._tool, source=self._starts.active, pid=instance.pid)
        self._places.serve()
        return member

    # -- instances --------------------------------------------------------------------------------

    async def _keep(self, member: Member) -> None:
        """Look after an instance until it is to be stopped, and stop it."""
        end = End("died", "a bug ended its supervision")
        try:
            places, kept = self._places, self._how.keep_warm
            end = await Watch(member, self._how, self._timing, lambda: len(places.running) > kept, self._is_well).run()
        except Exception:  # noqa: BLE001 - one instance's bug must not end the others
            telemetry.log.exception("instance.watch_bug", tool=self._tool)
        finally:
            member.leaving = True
            if not self.is_open:
                self._starter.line("toolbus: the instance is stopped: this host leaves, or the record was changed or removed")
            elif end.kind == "idle":
                self._starter.line(f"toolbus: the instance is stopped: nobody called it for {self._how.idle_stop:g} s")
            elif end.kind == "stuck":
                self._is_stuck(member, end.reason)
            else:
                self._has_ended(member, end)
            self._on_change()
            await self._stop(member)

    async def _stop(self, member: Member) -> None:
        try:
            await member.stop()
        except Exception as error:  # noqa: BLE001 - whatever a kind of source raises, the others go on
            telemetry.log.error("instance.not_stopped", tool=self._tool, pid=member.instance.pid, error=described(error))
        # One whose stop was cancelled stays; whoever cancelled it waits for it.
        if member in self._places.members:
            self._places.members.remove(member)
        self._on_change()

    def _is_well(self) -> None:
        """Take note that an instance has run for a while, or has passed a health check that it was asked for."""
        if any(member.settled for member in self._places.running):
            self._starts.ran_well()
        self._places.serve()

    def _has_ended(self, member: Member, end: End) -> None:
        """Take note that an instance ended that nobody wanted to end."""
        reason = one_line(end.reason, _MOST_REASON)
        if member.settled:
            self._starts.ran_well()
        if end.kind == "died":
            self._starts.died(reason, settled=member.settled)
        else:
            self._starts.unhealthy(reason)
        self._owe(member)
        self._starter.line(f"toolbus: the instance {end.kind if end.kind == 'died' else 'is unhealthy'}: {reason}")
        telemetry.log.warning("instance.ended", tool=self._tool, pid=member.instance.pid, kind=end.kind, reason=reason)
        self._has_failed()

    def _is_stuck(self, member: Member, reason: str) -> None:
        """Take note that an instance is ended for a call that its caller has given up; that is no failure of its source."""
        self._owe(member)
        self._starter.line(f"toolbus: the instance is ended: {reason}")
        telemetry.log.warning("instance.stuck", tool=self._tool, pid=member.instance.pid, reason=reason)

    def _owe(self, member: Member) -> None:
        """Let another instance take the place of one that was in use."""
        idle = self._how.idle_stop
        self._owed = self._owed or member.calls > 0 or idle <= 0 or self._loop.time() - member.used < idle

    def _has_failed(self) -> None:
        """Tell those who wait of a failure, and refuse them when it was the last one."""
        starts = self._starts
        if starts.given_up and not self._places.running:
            self._owed = False
            how = "can't be started as it is" if starts.permanent else f"failed {starts.failures} times in a row"
            self._starter.line(f"toolbus: {how}; the next start may be in {starts.wait:.1f} s")
            telemetry.log.error("instance.given_up", tool=self._tool, failures=starts.failures, error=starts.last_error)
            self._places.refuse(losses.down(self._tool, starts.last_error, starts.wait, permanent=starts.permanent))
        elif not self._places.running:
            self._places.tell(f"{self._tool} failed ({starts.last_error}); it is started again in {starts.wait:.1f} s")
        self._on_change()


def starting(tool: str) -> str:
    """Return what callers are told while a tool starts."""
    return f"starting {tool}"
