"""``ServedTools``: the services of a host, each with the pool of its tool."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import Blob, Progress, ToolbusError, ToolError, ToolResult
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.platform.backends.runner import Line, Output
from toolbus.platform.host.pool import Pool
from toolbus.platform.host.pool.member import CLOSED
from toolbus.platform.records import RecordedTool, ToolRoute
from toolbus.platform.search import document_of

Item = str | Blob | Progress | ToolResult

# Items that wait until the worker has room; the program is not read meanwhile.
_MOST_WAITING = 16


class Relay:
    """Takes in what a program answers; a program that answers faster than its caller reads waits."""

    __slots__ = ("_items", "_look", "_room")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._look = asyncio.Event()
        self._room = asyncio.Event()

    async def text(self, piece: str) -> None:
        """Pass on a piece of text."""
        await self._put(piece)

    async def blob(self, media_type: str, data: bytes) -> None:
        """Pass on a file."""
        await self._put(Blob(media_type, data))

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Pass on how far it is; numbers that JSON can't express are left out."""
        if math.isfinite(done):
            await self._put(Progress(done, total if total is not None and math.isfinite(total) else None, message))

    async def run(self, call: Callable[[Output], Coroutine[Any, Any, ToolResult]]) -> AsyncIterator[Item]:
        """Yield what a call streams, and its result last; the call is cancelled when nobody takes them any more.

        Raises:
            ToolError: the call failed.
        """
        working = asyncio.create_task(call(self))
        working.add_done_callback(lambda _: self._look.set())
        try:
            while True:
                while self._items:
                    item = self._items.popleft()
                    self._room.set()
                    yield item
                if working.done():
                    break
                self._look.clear()
                await self._look.wait()
            yield working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _put(self, item: Item) -> None:
        while len(self._items) >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        self._items.append(item)
        self._look.set()


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
        self.pool = pool
        # Class variables of services that are written down.
        self.__dict__.update(id=record.tool_id, description=f"recorded: {record.meta.name or record.tool_id}", tools=(document_of(record),))

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Item]:
        """Run one call at an instance."""
        left = invocation().remaining
        deadline = asyncio.get_running_loop().time() + left - min(_MOST_MARGIN, _MARGIN * left)
        async for item in Relay().run(lambda output: self._call(arguments, output, user, deadline)):
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
