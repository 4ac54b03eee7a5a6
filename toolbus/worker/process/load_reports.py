"""``LoadReports``: a worker process tells its parent how busy it is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import msgspec

from toolbus.background import keep_running
from toolbus.worker.process.lifeline import Told
from toolbus.worker.process.load import TICK, Load, LoadMeter, MeasuredWorker


class LoadReports:
    """Tells the parent of this process its load, from ``start`` to ``aclose``.

    Args:
        worker: not yet opened.
        lifeline: the child's end of the lifeline.
    """

    def __init__(self, worker: MeasuredWorker, lifeline: int) -> None:
        self._worker = worker
        self._line = socket.socket(fileno=lifeline)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, once the worker is open."""
        self._task = asyncio.create_task(keep_running("load reports", self._run, every=TICK))

    async def aclose(self) -> None:
        """Tell nothing more."""
        # The descriptor is the lifeline's, which others use on.
        self._line.detach()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        meter = LoadMeter(self._worker)
        while True:
            await asyncio.sleep(TICK)
            meter.sample()
            if meter.due:
                self._tell(meter.report())

    def _tell(self, load: Load) -> None:
        # A parent that is stopped must not stop its children: what finds no room is left out.
        with contextlib.suppress(OSError):
            self._line.send(msgspec.json.encode(Told(load=load)) + b"\n", socket.MSG_DONTWAIT)


@contextlib.asynccontextmanager
async def load_reports(worker: MeasuredWorker, lifeline: int | None) -> AsyncIterator[Callable[[], None]]:
    """Yield what begins to tell the parent this process's load; without a parent it does nothing."""
    if lifeline is None:
        yield lambda: None
        return
    reports = LoadReports(worker, lifeline)
    try:
        yield reports.start
    finally:
        await reports.aclose()
