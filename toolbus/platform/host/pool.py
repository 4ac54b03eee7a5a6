"""``Pool``: one recorded tool at one host, called and looked after."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolbus.bus.support.display import shortened
from toolbus.bus.values.results import Blob, Progress, ToolError, ToolResult
from toolbus.platform.backends.runner import Line, Output, Runner
from toolbus.platform.host import members as losses
from toolbus.platform.host.members import Cut, Member, Places, Timing
from toolbus.platform.host.supervisor import Starter, Starts, Supervisor, starting
from toolbus.platform.records import RecordedTool, SourceType, ToolRoute, ToolSource

_MOST_LINES = 50
_MOST_LINE = 2_000


class Pool:
    """Starts instances when calls want them, keeps them well, and stops them when nobody does.

    Open it before its first call, and close it: it owns the tasks that look after the instances.

    Args:
        record: the tool.
        runners: the kinds of sources that this host can run.
        host: id of the host, for the route.
        on_change: called with the route after each change of it; must return at once.
        on_line: called with each line of the programs' output, and with what becomes of them; must return at once.
        may_run: whether a source may be started at this host; each one may when left out.
        timing: the times that the record does not say.
        chance: draws the jitter of restarts.
    """

    def __init__(
        self,
        record: RecordedTool,
        runners: Mapping[SourceType, Runner],
        host: str,
        on_change: Callable[[ToolRoute], None],
        on_line: Line,
        *,
        may_run: Callable[[ToolSource], bool] = lambda _: True,
        timing: Timing | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.record = record
        self._on_change = on_change
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        timing = timing or Timing()
        chance = chance or random.Random()  # noqa: S311 - jitter, not a secret
        sources = tuple(index for index, source in enumerate(record.sources) if may_run(source))
        self._starts = Starts(sources, record.running.restarts, timing, asyncio.get_running_loop().time, chance)
        self._places = Places(self._changed)
        starter = Starter(record, runners, timing, self._line)
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

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines of its programs' output, at most 50."""
        return tuple(self._lines)

    def reset(self) -> None:
        """Forget the failures, and start with the first source again."""
        self._starts.reset()
        self._changed()

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
                raise losses.overran(tool) from None
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
            raise losses.too_late(tool, starts.last_error if starts.failures else "") from None

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
        line = shortened(line, _MOST_LINE)
        self._lines.append(line)
        self._on_line(line)
