"""``ServedTools``: the services of a host, each with the pool of its tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import Blob, Progress, ToolbusError, ToolError, ToolResult
from toolbus.bus.worker.definition.service import ToolService
from toolbus.bus.worker.run.invocation import invocation
from toolbus.bus.worker.worker import Worker
from toolbus.platform.backends.runner import Line, Output
from toolbus.platform.host.members import CLOSED
from toolbus.platform.host.pool import Pool
from toolbus.platform.records import RecordedTool, ToolRoute
from toolbus.platform.search import document_of

Item = str | Blob | Progress | ToolResult

# Items that wait until the worker has room; the program is not read meanwhile.
_MOST_WAITING = 16


async def relayed(call: Callable[[Output], Coroutine[Any, Any, ToolResult]]) -> AsyncIterator[Item]:
    """Yield what a call streams, and its result last; the call is cancelled when nobody takes them any more.

    A program that answers faster than its caller reads waits.

    Raises:
        ToolError: the call failed.
    """
    items = asyncio.Queue[Item | None]()
    room = asyncio.Semaphore(_MOST_WAITING)

    async def take(item: Item) -> None:
        await room.acquire()
        items.put_nowait(item)

    working = asyncio.create_task(call(take))
    working.add_done_callback(lambda _: items.put_nowait(None))
    try:
        while (item := await items.get()) is not None:
            room.release()
            yield item
        yield working.result()
    finally:
        working.cancel()
        await asyncio.wait({working})


# A call's own deadline ends everything; a little before it, its caller can still be told what it waited for.
_MOST_MARGIN, _MARGIN = 0.2, 0.05


class RecordedService(ToolService):
    """Passes the calls of one tool to its pool, which whoever made it opens and closes.

    Args:
        record: the tool; the service's id and the tool's name are its id.
        pool: its instances.
    """

    def __init__(self, record: RecordedTool, pool: Pool) -> None:
        self.revise(record, pool)
        # Every host may serve it, and no other program may take its name.
        self.owner_label = f"recorded:{record.tool_id}"

    def revise(self, record: RecordedTool, pool: Pool) -> None:
        """Be the tool as it is recorded now; calls that run go on at the pool that they have."""
        self.record = record
        self.pool = pool
        # Class variables of services that are written down.
        self.__dict__.update(id=record.tool_id, description=f"recorded: {record.meta.name or record.tool_id}", tools=(document_of(record),))

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Item]:
        """Run one call at an instance."""
        left = invocation().remaining
        deadline = asyncio.get_running_loop().time() + left - min(_MOST_MARGIN, _MARGIN * left)
        async for item in relayed(lambda output: self._call(arguments, output, user, deadline)):
            yield item

    async def _call(self, arguments: dict[str, Any], output: Output, user: str, deadline: float) -> ToolResult:
        """Run one call, at the newest pool: one that waited for an instance goes on waiting there when its tool is revised."""
        while True:
            pool = self.pool
            try:
                return await pool.call(arguments, output, user=user, deadline=deadline)
            except ToolError as error:
                if error.error.code != CLOSED or self.pool is pool:
                    raise


MakePool = Callable[[RecordedTool, Callable[[ToolRoute], None], Line], Pool]
"""Makes the pool of a tool, which tells its route and its programs' output."""


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
        self._served: dict[str, RecordedService] = {}
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
        self._served[record.tool_id] = service
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
        service = self._served[record.tool_id]
        before = service.record, service.pool
        pool = await self._open(record)
        service.revise(record, pool)
        try:
            await self._worker.republish(service)
        except BaseException:
            service.revise(*before)
            await pool.aclose()
            raise
        task = asyncio.create_task(self._stop(before[1], self._worker.settings.grace), name=f"end {record.tool_id}")
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

    async def _stop(self, pool: Pool, grace: float = 0.0) -> None:
        try:
            await pool.aclose(grace)
        except (ToolbusError, OSError, RuntimeError) as error:
            telemetry.log.error("host.tool_not_stopped", tool=pool.record.tool_id, error=described(error))
