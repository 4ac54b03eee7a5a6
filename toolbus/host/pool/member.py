"""``Member``: one running instance of a tool, with the calls that it runs."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.backends.runner import Instance, Output
from toolbus.host.pool.timing import Timing
from toolbus.platform.records import Running
from toolbus.results import ToolError, ToolResult


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
