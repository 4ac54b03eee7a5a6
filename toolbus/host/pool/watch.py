"""``Watch``: when a running instance is to be stopped, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple

from toolbus.backends.runner import Instance
from toolbus.host.pool.member import Member, Timing
from toolbus.platform.records import Running
from toolbus.safe_text import described

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
        ended = asyncio.create_task(self._member.instance.ended())
        ended.add_done_callback(lambda _: self._member.look.set())
        try:
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
        finally:
            ended.cancel()
            await asyncio.wait({ended})

    async def _wait(self) -> None:
        """Wait until there is something to look at."""
        when, look = min(self._check, self._settles, self._idle_at(), self._given_up.due), self._member.look
        try:
            # A timer may fire by the clock's resolution too early.
            async with asyncio.timeout_at(None if when == _NEVER else when + _RESOLUTION):
                await look.wait()
        except TimeoutError:
            pass
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
        check = asyncio.create_task(instance.health(answered=self._member.suspected > 0))
        try:
            await asyncio.wait({check, ended}, timeout=self._timing.health_within, return_when=asyncio.FIRST_COMPLETED)
            return _text_of(check) if check.done() else f"it did not answer a health check within {self._timing.health_within:g} s"
        finally:
            check.cancel()
            await asyncio.wait({check})


def _text_of(task: asyncio.Task[str]) -> str:
    """Return what a task that is done has returned, or what it raised, as text."""
    if task.cancelled():
        return "it was cancelled from within"
    error = task.exception()
    return described(error) if error is not None else task.result()
