"""``Waiter``: a call that waits for an instance."""

from __future__ import annotations

import asyncio

from toolbus.backends.runner import Output
from toolbus.host.pool.member import Member
from toolbus.results import ToolError


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
