"""``Puller``: claims tasks and runs them, so many at once, until it is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from toolbus import telemetry
from toolbus.background import keep_running
from toolbus.broker.protocols import Creations, CreationStatus
from toolbus.coding.job import Job, end
from toolbus.results import BrokerError, ToolbusError
from toolbus.safe_text import reason_of

# Tasks whose processes died are looked for so often.
_LOOKS = 3


class Outcome(NamedTuple):
    """The end of a run: ``queued`` to be tried again after ``delay`` seconds."""

    status: CreationStatus
    result: str
    delay: float = 0.0


class Puller:
    """Runs the tasks of a namespace.

    Args:
        creations: the tasks.
        worker: who runs them, for people.
        run: runs one task to its end; it is cancelled when the task is, or when another process runs it.
        at_once: most tasks that run at once.
        forget: called with the id of a task that has ended, when nobody will go on with it.
    """

    def __init__(
        self,
        creations: Creations,
        worker: str,
        run: Callable[[Job], Awaitable[Outcome]],
        at_once: int,
        forget: Callable[[str], Awaitable[object]],
    ) -> None:
        self._creations = creations
        self._worker = worker
        self._run = run
        self._at_once = at_once
        self._forget = forget
        self._jobs: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to claim tasks."""
        self._pulling = asyncio.create_task(keep_running("tasks", self._pull, every=self._creations.lease / _LOOKS))

    async def aclose(self) -> None:
        """Claim nothing more, and give back what runs: another process goes on with it."""
        tasks = [*self._jobs, *([] if self._pulling is None else [self._pulling])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self) -> None:
        while True:
            seen = self._creations.changes
            claimed = None
            try:
                claimed = await self._creations.claim(self._worker) if len(self._jobs) < self._at_once else None
            except BrokerError as error:
                telemetry.log.warning("creation.not_claimed", error=str(error))
            if claimed is None:
                await self._rest(seen)
                continue
            job = asyncio.create_task(self._work(Job(self._creations, claimed)))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _rest(self, seen: int) -> None:
        """Wait until there may be a task: for news while there is room, else until one of those that run ends."""
        pause = self._creations.lease / _LOOKS
        if len(self._jobs) >= self._at_once:
            await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)
            return
        with contextlib.suppress(BrokerError):
            await self._creations.wait(pause, seen)

    async def _work(self, job: Job) -> None:
        id = job.creation.id  # noqa: A001 - it is one
        telemetry.log.info("creation.started", id=id, attempt=job.creation.attempts)
        try:
            outcome = await self._outcome(job)
        except asyncio.CancelledError:
            await asyncio.shield(end(job, self._creations, "queued", ""))
            telemetry.log.info("creation.given_back", id=id)
            raise
        if outcome is None:
            telemetry.log.warning("creation.lost", id=id)
            return
        written = await end(job, self._creations, outcome.status, outcome.result, outcome.delay)
        telemetry.log.info("creation.ended", id=id, status=outcome.status)
        if written and outcome.status != "queued":
            await self._forget(id)

    async def _outcome(self, job: Job) -> Outcome | None:
        """Run a task beside its lease; None when another process runs it now."""
        running = asyncio.ensure_future(self._run(job))
        keeping = asyncio.ensure_future(job.keep())
        try:
            await asyncio.wait((running, keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (running, keeping):
                each.cancel()
            await asyncio.gather(running, keeping, return_exceptions=True)
        if not running.cancelled():
            return _ended(running)
        if job.cancelled:
            return Outcome("cancelled", "cancelled while it ran")
        return None


def _ended(running: asyncio.Future[Outcome]) -> Outcome:
    error = running.exception()
    if error is None:
        return running.result()
    if not isinstance(error, ToolbusError):
        telemetry.log.error("creation.failed", error=reason_of(error), exc_info=error)
    return Outcome("failed", f"the coding agent failed: {reason_of(error)}")
