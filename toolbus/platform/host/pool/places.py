"""``Places``: the instances of a tool, and the calls that wait for a place at one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.runner import Output
from toolbus.platform.host.pool.member import Member


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
                await output.progress(0.0, None, self._told)
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
        found: Member | None = None
        for member in self.members:
            if member.free and (found is None or member.calls < found.calls):
                found = member
        return found
