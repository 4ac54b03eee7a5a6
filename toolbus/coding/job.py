"""``Job``: one claimed task: its lease is renewed and its log written, until it ends."""

from __future__ import annotations

import asyncio

from toolbus import telemetry
from toolbus.broker.protocols import ClaimedCreation, Creation, Creations, Spent
from toolbus.broker.protocols.creations import MOST_LINE, MOST_LINES
from toolbus.results import BrokerError

# The lease is renewed so often.
_RENEWALS = 3
_MOST_WAITING = MOST_LINES


class Job:
    """A task that this process runs.

    Attributes:
        cancelled: whether somebody asked for its end.
        lost: whether another process runs it now.
    """

    def __init__(self, creations: Creations, claimed: ClaimedCreation) -> None:
        self._creations = creations
        self._claimed = claimed
        self._first = claimed.creation.lines
        self._lines: list[str] = []
        self._progress: str | None = None
        self._spent: Spent | None = None
        self._news = asyncio.Event()
        self.cancelled = False
        self.lost = False

    @property
    def creation(self) -> Creation:
        """The task as it was claimed."""
        return self._claimed.creation

    @property
    def claimed(self) -> ClaimedCreation:
        """The claim."""
        return self._claimed

    def log(self, line: str) -> None:
        """Add a line to the task's log. Returns at once; beyond some hundred that wait, the oldest are dropped."""
        for each in (line.splitlines() or [""])[:_MOST_WAITING]:
            self._lines.append(each[:MOST_LINE])
        while len(self._lines) > _MOST_WAITING:
            del self._lines[0]
            self._first += 1
        self._news.set()

    def progress(self, text: str) -> None:
        """Tell what it does now. Returns at once."""
        self._progress = " ".join(text.split())[:MOST_LINE]
        self._news.set()

    def spent(self, spent: Spent) -> None:
        """Tell its whole cost. Returns at once."""
        self._spent = spent
        self._news.set()

    async def keep(self) -> None:
        """Write what is told and renew the lease, until the task is cancelled or lost.

        Raises:
            BrokerError: the server refuses.
        """
        while not (self.cancelled or self.lost):
            await self.write()
            if self.cancelled or self.lost:
                return
            await self._wait()

    async def write(self) -> None:
        """Write what was told until now, and renew the lease.

        Raises:
            BrokerError: the server refuses.
        """
        self._news.clear()
        first, lines = self._first, tuple(self._lines)
        answer = await self._creations.write(self._claimed, first=first, lines=lines, progress=self._progress, spent=self._spent)
        self.cancelled = answer == "cancel"
        self.lost = answer == "lost"
        # The oldest may have been dropped meanwhile.
        written = max(0, first + len(lines) - self._first)
        del self._lines[:written]
        self._first += written

    async def _wait(self) -> None:
        """Wait until there is something to tell, something changes, or it is time to renew."""
        seen = self._creations.changes
        changed = asyncio.ensure_future(self._creations.wait(self._creations.lease / _RENEWALS, seen))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((changed, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (changed, news):
                each.cancel()
        # What is told in one moment goes together.
        await asyncio.sleep(0.02)


async def end(job: Job, creations: Creations, status: str, result: str, delay: float = 0.0) -> bool:
    """End a job, and return whether that was written: a task that can't be ended goes on elsewhere when its lease ends."""
    try:
        await job.write()
        return await creations.end(job.claimed, status, result, delay=delay)  # type: ignore[arg-type] # its callers have literals
    except BrokerError as error:
        telemetry.log.warning("creation.not_ended", id=job.creation.id, error=str(error))
        return False
