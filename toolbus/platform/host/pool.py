"""``Pool``: one recorded tool at one host, called and looked after; ``ServedTools``: the services of a host, each with its pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.display import shortened
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import Blob, Progress, ToolbusError, ToolError, ToolResult, deadline_exceeded
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.platform.backends.runner import Line, Output, Runner
from toolbus.platform.host import members as losses
from toolbus.platform.host.members import CLOSED, Cut, Member, Places, Timing
from toolbus.platform.host.supervisor import Starter, Starts, Supervisor, starting
from toolbus.platform.records import RecordedTool, ToolRoute, ToolSource
from toolbus.platform.search import document_of

_MOST_LINE = 2_000


class Pool:
    """Starts instances when calls want them, keeps them well, and stops them when nobody does.

    Open it before its first call, and close it: it owns the tasks that look after the instances.

    Args:
        record: the tool.
        runner: starts its instances.
        host: id of the host, for the route.
        on_change: called with the route after each change of it; must return at once.
        on_line: called with each line of the programs' output, and with what becomes of them; must return at once.
        may_run: whether a source may be started at this host; each one may when left out.
        timing: the times that the record does not say.
    """

    def __init__(
        self,
        record: RecordedTool,
        runner: Runner,
        host: str,
        on_change: Callable[[ToolRoute], None],
        on_line: Line,
        *,
        may_run: Callable[[ToolSource], bool] = lambda _: True,
        timing: Timing | None = None,
    ) -> None:
        self.record = record
        self._on_change = on_change
        self._on_line = on_line
        timing = timing or Timing()
        sources = tuple(index for index, source in enumerate(record.sources) if may_run(source))
        self._starts = Starts(sources, record.running.restarts, timing)
        self._places = Places(self._changed)
        starter = Starter(record, runner, timing, self._line)
        self._supervisor = Supervisor(starter, self._starts, self._places, timing, self._changed)
        self._closed = False
        self._route = ToolRoute(
            tool_id=record.tool_id, sources=record.sources, host=host, since=time.time(), active_source=self._starts.active
        )

    # -- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to take calls; instances that are kept warm are started in the background."""
        self._supervisor.open()

    async def aclose(self, grace: float = 0.0) -> None:
        """Refuse new calls, and stop all instances.

        Args:
            grace: seconds for which calls that run or wait may go on before.
        """
        self._closed = True
        if grace > 0:
            await self._places.drain(grace)
        self._places.refuse(losses.closed(self.record.tool_id))
        await self._supervisor.aclose()
        self._changed()

    def route(self) -> ToolRoute:
        """Return where the tool runs now, and how it is."""
        return self._route

    # -- calls ------------------------------------------------------------------------------------

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call at an instance, which is started if there is none.

        A call that no instance answered because it ended is run once more, if its tool's effect allows that and nothing was streamed.

        Args:
            arguments: are the JSON body.
            output: takes what is streamed, and what the call waits for.
            user: on whose behalf it runs.
            deadline: when it ends in any case, in the loop's time; 0 for never.

        Raises:
            ToolError: it failed, or there is no instance: ``unavailable``, ``outcome_unknown``, ``deadline_exceeded``.
        """
        tool, effect, streamed = self.record.tool_id, self.record.running.effect, False

        async def answer(item: str | Blob | Progress) -> None:
            nonlocal streamed
            streamed = streamed or not isinstance(item, Progress)
            await output(item)

        for last in (False, True):
            member = await self._member(output, deadline, again=last)
            try:
                return await member.call(arguments, answer, user, deadline)
            except TimeoutError:
                raise ToolError(deadline_exceeded(f"{tool} did not answer within the call's time")) from None
            except (ToolError, Cut) as error:
                loss = losses.loss_of(error)
                if not loss:
                    raise
                member.suspect()
                if last or streamed or (loss != "not_run" and effect == "once"):
                    raise losses.lost(tool, effect, loss, error, streamed=streamed) from None
            finally:
                self._places.release(member)
            await output(Progress(0.0, None, f"{tool} did not answer; the call runs again"))
        raise AssertionError

    async def _member(self, output: Output, deadline: float, *, again: bool) -> Member:
        """Return an instance, with a place taken at it; ``again`` for a call that had one before, also while the pool drains.

        Raises:
            ToolError: there will be none, or not in time.
        """
        tool, starts = self.record.tool_id, self._starts
        if self._closed and not (again and self._supervisor.is_open):
            raise losses.closed(tool)
        member = self._places.take()
        if member is not None:
            return member
        if self._supervisor.is_down:
            raise losses.down(tool, starts.last_error, starts.wait, permanent=starts.permanent)
        try:
            return await self._places.wait(output, "" if self._places.running else starting(tool), deadline)
        except TimeoutError:
            why = f": {starts.last_error}" if starts.failures and starts.last_error else ""
            raise ToolError(deadline_exceeded(f"{tool} had no instance for the call within its time{why}", "not_started")) from None

    # -- what becomes known -----------------------------------------------------------------------

    def _changed(self) -> None:
        """Let the supervisor look, and tell the route if it is another one."""
        self._supervisor.look()
        running, starts, route = self._places.running, self._starts, self._route
        state = self._supervisor.state
        now = msgspec.structs.replace(
            route,
            state=state,
            active_source=starts.active,
            pid=running[0].instance.pid if running else 0,
            port=running[0].instance.port if running else 0,
            since=route.since if state == route.state else time.time(),
            restarts=starts.failures,
            last_error=starts.last_error,
            instances=len(running),
        )
        if now != route:
            self._route = now
            self._on_change(now)

    def _line(self, line: str) -> None:
        self._on_line(shortened(line, _MOST_LINE))


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
