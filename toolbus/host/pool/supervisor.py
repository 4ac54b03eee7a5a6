"""``Supervisor``: starts the instances of a tool when they are wanted, and looks after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus import telemetry
from toolbus.background import keep_running
from toolbus.display import one_line
from toolbus.host.pool import member as losses
from toolbus.host.pool.member import Member, Timing
from toolbus.host.pool.places import Places
from toolbus.host.pool.starting import Starter
from toolbus.host.pool.starts import Starts
from toolbus.host.pool.watch import End, Watch
from toolbus.platform.records import State
from toolbus.safe_text import described

_MOST_REASON = 500
# A timer may fire by the clock's resolution too early.
_RESOLUTION = 0.001


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
        return "stopped" if self._due() is None else "starting"

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
                    await self._until_due()
                    member = await self._start()
                    if member is not None:
                        keepers.create_task(self._keep(member), name=f"instance of {self._tool}")
        finally:
            # Those whose tasks were cancelled before they began, or while they stopped them.
            for member in tuple(self._places.members):
                await self._stop(member)

    async def _until_due(self) -> None:
        """Wait until an instance is to be started."""
        while True:
            due = self._due()
            if due is not None and due <= self._loop.time():
                return
            self._look.clear()
            try:
                async with asyncio.timeout_at(None if due is None else due + _RESOLUTION):
                    await self._look.wait()
            except TimeoutError:
                continue

    def _due(self) -> float | None:
        """Return when the next instance is to be started, in the loop's time; None when none is."""
        how, running, present = self._how, self._places.running, len(self._places.members)
        if not self.is_open or present >= max(1, how.instances, how.keep_warm):
            return None
        since = self._places.waiting_since
        if len(running) < how.keep_warm or (not running and (self._owed or since is not None)):
            return self._starts.due
        if since is not None and present < how.instances and not any(member.suspected for member in running):
            # A short wait is cheaper than another instance.
            return max(self._starts.due, since + self._timing.patience)
        return None

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
            end = await Watch(member, self._how, self._timing, self._may_idle, self._is_well).run()
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

    def _may_idle(self) -> bool:
        return len(self._places.running) > self._how.keep_warm

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
