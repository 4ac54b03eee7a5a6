"""``Member``: one running instance of a tool with its calls; ``Places``: all of them, and the calls that wait for a place at one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from toolbus.bus.values.results import Progress, ToolError, ToolResult
from toolbus.platform.backends.runner import CONNECTION_LOST, NOT_REACHED, Instance, Output
from toolbus.platform.records import Running


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a pool.

    Attributes:
        first_delay: before the start after a first failure; doubled for each further one.
        longest_delay: most between two starts.
        settled: an instance that has run for so long has run well.
        patience: that a call waits for a busy instance until another one is started for it.
        health_within: that a health check may take.
        again_after: between a failed health check and the one that confirms it.
        start_within: that a start may take beside the time to become ready, such as for building an image.
        last_words: that calls of an instance which has ended have for reading what it sent.
        stop_within: that the end of an instance may take beyond the time that its record gives it; longer than a runner needs to kill one.
    """

    first_delay: float = 0.2
    longest_delay: float = 60.0
    settled: float = 10.0
    patience: float = 0.2
    health_within: float = 5.0
    again_after: float = 1.0
    start_within: float = 600.0
    last_words: float = 1.0
    stop_within: float = 40.0


class Cut(Exception):
    """The instance has ended, and the call with it."""


class Member:
    """Runs calls on an instance.

    Args:
        instance: the running instance.
        running: how the tool is run.
        timing: the times that the record does not say.

    Attributes:
        started: when it became ready, in the loop's time.
        used: when a call began or ended last, in the loop's time.
        calls: how many calls have a place at it.
        leaving: True from when it is to be stopped; it is given no more calls.
        suspected: how many calls were lost there since it last answered a request; until it does, it is given none.
        held: how many places calls have that were given up while the program may go on with them.
        doubted: a call was cancelled or reached its deadline since the last sign of life.
        look: set when whoever watches it has something to look at.
    """

    def __init__(self, instance: Instance, running: Running, timing: Timing) -> None:
        self.instance = instance
        self._running = running
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._scopes: set[asyncio.Timeout] = set()
        self._cut = False
        self._stopping: asyncio.Task[None] | None = None
        self.started = self.used = self._loop.time()
        self.calls = self.held = 0
        self.leaving = False
        self.suspected = 0
        self.doubted = False
        self.look = asyncio.Event()

    @property
    def settled(self) -> bool:
        """True if it has run for a while."""
        return self._loop.time() - self.started >= self._timing.settled

    @property
    def free(self) -> bool:
        """True if it takes another call."""
        return self.calls + self.held < max(1, self._running.concurrency) and not self.leaving and not self.suspected

    def take(self) -> None:
        """Take a place for a call."""
        self.calls += 1
        self.used = self._loop.time()

    def release(self) -> None:
        """Free the place of a call."""
        self.calls -= 1
        self.used = self._loop.time()

    def suspect(self) -> None:
        """Have it answer a request before it is given another call."""
        self.suspected += 1
        self.look.set()

    async def call(self, arguments: dict[str, Any], output: Output, user: str, deadline: float) -> ToolResult:
        """Run one call, at the place that was taken for it.

        Raises:
            ToolError: the call failed.
            Cut: the instance was ended meanwhile.
            TimeoutError: the deadline has passed.
        """
        scope = asyncio.timeout_at(deadline or None)
        self._scopes.add(scope)
        try:
            async with scope:
                if self._cut:
                    raise Cut
                result = await self.instance.call(arguments, output, user=user, deadline=deadline)
        except TimeoutError:
            if self._cut:
                raise Cut from None
            self._doubt()
            raise
        except asyncio.CancelledError:
            self._doubt()
            raise
        except ToolError as error:
            if error.error.type == "deadline_exceeded":
                self._doubt()
            raise
        finally:
            self._scopes.discard(scope)
        self.doubted = False
        return result

    async def stop(self) -> None:
        """End the instance, and what is left of its calls; a stop that is cancelled goes on, and the next one waits for it."""
        self.leaving = True
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        within = self._running.stop_within
        try:
            async with asyncio.timeout(within + self._timing.stop_within):
                await self.instance.stop(within)
            if self._scopes:
                # They may still read what it sent before its end.
                await asyncio.sleep(self._timing.last_words)
        finally:
            self._cut = True
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(self._loop.time())

    def _doubt(self) -> None:
        self.doubted = True
        self.held += 1
        self.look.set()


CLOSED = "tool_closed"
"""The code of calls to a pool that was closed before they began."""

Loss = Literal["", "not_run", "unknown"]
"""``not_run``: the program was not reached; ``unknown``: the program may have run the call; empty: it has answered."""


def loss_of(error: Exception) -> Loss:
    """Return what is known of a call that ended with an error."""
    if isinstance(error, Cut):
        return "unknown"
    info = error.error if isinstance(error, ToolError) else None
    if info is None:
        return ""
    if info.type == "unavailable" and info.code == NOT_REACHED:
        return "not_run"
    return "unknown" if info.code == CONNECTION_LOST else ""


def lost(tool: str, effect: str, loss: Loss, error: Exception, *, streamed: bool) -> ToolError:
    """Return the error of a call that is not run again.

    Args:
        tool: its name.
        effect: what a second run would do.
        loss: what is known of the call.
        error: how it ended.
        streamed: whether a part of the answer was passed on.
    """
    said = f" ({error.error.message})" if isinstance(error, ToolError) else ""
    if loss == "not_run":
        return ToolError(f"{tool} could not be reached{said}", type="unavailable", code=NOT_REACHED, retryable=True)
    if effect == "once":
        message = f"{tool} ended during the call, so it is unknown whether the call had its effect{said}"
        return ToolError(message, type="outcome_unknown", code="program_ended")
    after = " after a part of its answer" if streamed else " again"
    return ToolError(f"{tool} ended during the call{after}{said}", code="program_ended", retryable=True)


def down(tool: str, reason: str, wait: float, *, permanent: bool) -> ToolError:
    """Return the error of a call to a tool that can't be started; ``permanent`` when no further try can help."""
    if permanent:
        return ToolError(f"{tool} can't be started ({reason})", type="unavailable", code="tool_failed")
    after = f"; the next start may be in {wait:.1f} s" if wait > 0 else ""
    message = f"{tool} can't be started now ({reason or 'it failed'}){after}"
    return ToolError(message, type="unavailable", code="tool_failed", retryable=True, retry_after=round(wait, 2) or None)


def closed(tool: str) -> ToolError:
    """Return the error of a call to a tool that is no longer served here."""
    return ToolError(f"{tool} is no longer served here", type="unavailable", code=CLOSED, retryable=True)


class Waiter:
    """One call in the line; it hears what it waits for.

    Args:
        since: when it began to wait, in the loop's time.

    Attributes:
        member: the instance that it was given a place at.
    """

    __slots__ = ("_error", "_news", "_told", "_wake", "member", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.member: Member | None = None
        self._error: ToolError | None = None
        self._news = self._told = ""
        self._wake = asyncio.Event()

    def tell(self, news: str) -> None:
        """Tell its caller something, unless it was told just that, or there is newer news."""
        self._news = "" if news == self._told else news
        self._wake.set()

    def grant(self, member: Member) -> None:
        """Give it the place that was taken for it."""
        self.member = member
        self._wake.set()

    def refuse(self, error: ToolError) -> None:
        """End its wait without a place."""
        self._error = error
        self._wake.set()

    async def wait(self, output: Output) -> Member:
        """Return the instance.

        Args:
            output: hears the news.

        Raises:
            ToolError: there will be none.
        """
        while True:
            if self.member is not None:
                return self.member
            if self._error is not None:
                raise self._error
            if self._news:
                self._told, self._news = self._news, ""
                await output(Progress(0.0, None, self._told))
                continue
            self._wake.clear()
            await self._wake.wait()


class Places:
    """Gives places to calls in the order in which they came.

    Args:
        on_change: called when what waits or runs has changed; must return at once.

    Attributes:
        members: the instances, those that are being stopped among them.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._waiting: dict[Waiter, None] = {}
        self.members: list[Member] = []
        # Set whenever a call has ended, or waits no longer.
        self._left = asyncio.Event()

    @property
    def running(self) -> list[Member]:
        """The instances that are not to be stopped."""
        return [member for member in self.members if not member.leaving]

    @property
    def waiting_since(self) -> float | None:
        """When the call began to wait that waits for the longest time, in the loop's time; None when none waits."""
        return next(iter(self._waiting)).since if self._waiting else None

    def take(self) -> Member | None:
        """Take a place at the instance with the fewest calls; None when there is none, or others wait for it."""
        member = None if self._waiting else self._free()
        if member is not None:
            member.take()
        return member

    async def wait(self, output: Output, news: str, deadline: float) -> Member:
        """Wait for a place, and take it.

        Args:
            output: hears the news.
            news: the first one, if any.
            deadline: when to give up, in the loop's time; 0 for never.

        Raises:
            ToolError: there will be none.
            TimeoutError: the deadline has passed.
        """
        waiter = Waiter(asyncio.get_running_loop().time())
        self._waiting[waiter] = None
        waiter.tell(news)
        self._on_change()
        try:
            async with asyncio.timeout_at(deadline or None):
                return await waiter.wait(output)
        except BaseException:
            if waiter.member is not None:
                self.release(waiter.member)
            raise
        finally:
            self._left.set()
            if waiter in self._waiting:
                del self._waiting[waiter]
                self._on_change()

    def release(self, member: Member) -> None:
        """Free a place that was taken."""
        member.release()
        self._left.set()
        if self._waiting:
            self.serve()

    def serve(self) -> None:
        """Give free places to those who wait."""
        while self._waiting and (member := self._free()) is not None:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            member.take()
            waiter.grant(member)
        self._on_change()

    def refuse(self, error: ToolError) -> None:
        """End the wait of all who wait."""
        for waiter in self._waiting:
            waiter.refuse(error)
        self._waiting.clear()

    def tell(self, news: str) -> None:
        """Tell all who wait."""
        for waiter in self._waiting:
            waiter.tell(news)

    async def drain(self, grace: float) -> None:
        """Wait until no calls run or wait, for at most so many seconds."""
        try:
            async with asyncio.timeout(grace):
                while self._waiting or any(member.calls for member in self.members):
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return

    def _free(self) -> Member | None:
        return min((member for member in self.members if member.free), key=lambda member: member.calls, default=None)
