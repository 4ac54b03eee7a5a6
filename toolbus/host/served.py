"""``ServedTools``: the services of a host, each with the pool of its tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from toolbus import telemetry
from toolbus.backends.runner import Line
from toolbus.host.pool import Pool
from toolbus.host.service import RecordedService
from toolbus.platform.records import RecordedTool, ToolRoute
from toolbus.results import ToolbusError
from toolbus.safe_text import described
from toolbus.worker.worker import Worker

MakePool = Callable[[RecordedTool, Callable[[ToolRoute], None], Line], Pool]
"""Makes the pool of a tool, which tells its route and its programs' output."""


class _Served(NamedTuple):
    record: RecordedTool
    service: RecordedService
    pool: Pool


class ServedTools:
    """Begins, revises and ends services while the others are served.

    Args:
        worker: serves them.
        make_pool: makes a tool's pool.
        on_route: called with the route of a served tool whenever it changes.
        line: returns what takes in the output of a tool's programs.
    """

    def __init__(self, worker: Worker, make_pool: MakePool, on_route: Callable[[ToolRoute], None], line: Callable[[str], Line]) -> None:
        self._worker = worker
        self._make_pool = make_pool
        self._on_route = on_route
        self._line = line
        self._served: dict[str, _Served] = {}
        # Of earlier revisions, whose calls still run.
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, tool: str) -> bool:
        return tool in self._served

    @property
    def records(self) -> dict[str, RecordedTool]:
        """The records that are served, by tool."""
        return {tool: served.record for tool, served in self._served.items()}

    async def begin(self, record: RecordedTool) -> None:
        """Serve a tool.

        Raises:
            ToolbusError: it can't be served.
        """
        pool = await self._open(record)
        service = RecordedService(record, pool)
        self._served[record.tool_id] = _Served(record, service, pool)
        try:
            await self._worker.add(service)
        except BaseException:
            del self._served[record.tool_id]
            await pool.aclose()
            raise
        self._on_route(pool.route())

    async def revise(self, record: RecordedTool) -> None:
        """Serve a tool as it is recorded now: new calls go to a new pool, and those that run end at the old one.

        Raises:
            ToolbusError: it can't be served so, and goes on as it was.
        """
        before = self._served[record.tool_id]
        pool = await self._open(record)
        before.service.revise(record, pool)
        self._served[record.tool_id] = _Served(record, before.service, pool)
        try:
            await self._worker.republish(before.service)
        except BaseException:
            before.service.revise(before.record, before.pool)
            self._served[record.tool_id] = before
            await pool.aclose()
            raise
        task = asyncio.create_task(self._close(before.pool), name=f"end {record.tool_id}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._on_route(pool.route())
        telemetry.log.info("host.tool_revised", tool=record.tool_id, revision=record.revision)

    async def end(self, tool: str) -> None:
        """Serve a tool no longer; its running calls end before its programs do.

        Raises:
            ToolbusError: the server could not be told; say it again.
        """
        await self._worker.withdraw(tool)
        served = self._served.pop(tool)
        await self._stop(served.pool)

    async def aclose(self) -> None:
        """Stop all programs; the worker has drained."""
        pools = [served.pool for served in self._served.values()]
        self._served.clear()
        await asyncio.gather(*map(self._stop, pools), *self._closing)

    async def _open(self, record: RecordedTool) -> Pool:
        tool = record.tool_id

        def moved(route: ToolRoute) -> None:
            # That of an earlier revision is told no more, nor that of a tool that is not served.
            served = self._served.get(tool)
            if served is not None and served.pool is pool:
                self._on_route(route)

        pool = self._make_pool(record, moved, self._line(tool))
        await pool.open()
        return pool

    async def _close(self, pool: Pool) -> None:
        await self._stop(pool, self._worker.settings.grace)

    async def _stop(self, pool: Pool, grace: float = 0.0) -> None:
        try:
            await pool.aclose(grace)
        except (ToolbusError, OSError, RuntimeError) as error:
            telemetry.log.error("host.tool_not_stopped", tool=pool.record.tool_id, error=described(error))
