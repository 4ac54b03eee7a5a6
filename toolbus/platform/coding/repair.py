"""``Repairs``: ask for the repair of tools that coding agents wrote and that fail."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterable, Sequence

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.values.results import OF_CODE, BrokerError, ConfigurationError, ToolError
from toolbus.platform.coding.options import CodingOptions
from toolbus.platform.records import RecordedTool, ToolRoute
from toolbus.platform.states import tool_routes
from toolbus.platform.store import Records

_MOST_TOLD = 5


class Failing(msgspec.Struct, frozen=True):
    """A tool that fails.

    Attributes:
        why: one line.
        calls: what is known of the calls that failed, one line each.
    """

    tool: RecordedTool
    why: str
    calls: tuple[str, ...] = ()


def failed_everywhere(tool: RecordedTool, routes: Iterable[ToolRoute], recent: Iterable[RecentCall]) -> Failing | None:
    """Return a tool that has been given up by every host that may run it."""
    of_tool = [route for route in routes if route.tool_id == tool.tool_id]
    if not of_tool or any(route.state != "failed" for route in of_tool):
        return None
    failed = [call for call in recent if call.tool == tool.tool_id and call.error]
    return Failing(tool, f"no host can run it: {of_tool[0].last_error or 'its program does not start'}", told(failed))


def failing_calls(tool: RecordedTool, recent: Iterable[RecentCall], *, since: float, share: float, least: int) -> Failing | None:
    """Return a tool of whose calls since a time more than a share have failed."""
    calls = [call for call in recent if call.tool == tool.tool_id and call.ended >= since and call.outcome in {"succeeded", "failed"}]
    failed = [call for call in calls if call.error in OF_CODE]
    if len(calls) < least or len(failed) <= share * len(calls):
        return None
    return Failing(tool, f"{len(failed)} of its last {len(calls)} calls failed", told(failed))


def told(failed: Sequence[RecentCall]) -> tuple[str, ...]:
    """Return what is known of some calls that failed, the same once."""
    lines = dict.fromkeys(
        f"{call.error}{f' ({call.code})' if call.code else ''}: {call.message}{f' with {call.arguments}' if call.arguments else ''}"
        for call in failed
    )
    return tuple(lines)[:_MOST_TOLD]


_RECENT = 1_000
_MOST_LINES = 50
_MOST_SPEC = 4_000

_SPEC = """Repair the tool {tool!r}. Its code is in the folder {tool} of your workspace. Find out why it fails, mend it, try it, and
register it with register_tool under the same id; it must still answer its old examples.

Why it is to be repaired: {why}

The calls that failed:
{calls}

The last lines that its program printed:
{output}

Its description: {description}

The task for which it was written:
{spec}"""


class Repairs:
    """Looks for failing tools again and again, in every worker of the coding agent; a tool has one repair at a time.

    Args:
        bus: open.
        options: the deployment's.
        every: seconds between two looks.
    """

    def __init__(self, bus: ToolBus, options: CodingOptions, every: float) -> None:
        self._bus = bus
        self._options = options
        self._every = every
        self._records = Records(bus)
        # When each revision was first seen: calls before that were another one's.
        self._seen: dict[tuple[str, int], float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except (BrokerError, ToolError, ConfigurationError) as error:
                telemetry.log.warning("creation.not_looked", error=str(error))
            await asyncio.sleep(self._every)

    async def look(self) -> list[str]:
        """Ask for the repairs that are due; return their tasks' ids.

        Raises:
            BrokerError: the server could not be asked.
            ToolError: there is no room for a task.
        """
        found = await self._records.all()
        tasks = await self._bus.creations.overview(_RECENT)
        open_now = {task.about for task in (*tasks.running, *tasks.queued)}
        made = []
        for failing in await self._failing([tool for tool in found.tools.values() if tool.by_model]):
            tool = failing.tool
            if tool.tool_id in open_now or tool.tool_id in found.pending:
                continue
            before = sum(task.about == tool.tool_id and _day(task.created) == _day(time.time()) for task in tasks.recent)
            if before >= self._options.repairs_a_day:
                continue
            made.append(await self._submit(failing, before))
        return made

    async def _failing(self, tools: list[RecordedTool]) -> list[Failing]:
        self._seen = {key: self._seen.get(key, time.time()) for key in ((tool.tool_id, tool.revision) for tool in tools)}
        if not tools:
            return []
        routes = await tool_routes(self._bus.routes)
        async with Admin(self._bus.settings) as admin:
            recent = await admin.recent(_RECENT)
        share, least = self._options.failing_share, self._options.failing_calls
        found = [
            failed_everywhere(tool, routes, recent)
            or failing_calls(tool, recent, since=self._seen[tool.tool_id, tool.revision], share=share, least=least)
            for tool in tools
        ]
        return [failing for failing in found if failing is not None]

    async def _submit(self, failing: Failing, before: int) -> str:
        tool = failing.tool
        output = await self._bus.routes.output(tool.tool_id, _MOST_LINES)
        first = await self._bus.creations.get(tool.made_by)
        spec = _SPEC.format(
            tool=tool.tool_id,
            why=failing.why,
            calls="\n".join(failing.calls) or "none is known",
            output="\n".join(line.text for line in output)[-_MOST_SPEC:] or "nothing",
            description=tool.meta.description[:_MOST_SPEC],
            spec=(first.spec if first is not None else "it is not kept any more")[:_MOST_SPEC],
        )
        # Workers that look at the same time ask for the same repair; whose words differ, the first one's stand.
        key = f"repair/{tool.tool_id}/{tool.revision}/{_day(time.time())}/{before}"
        try:
            task = await self._bus.creations.submit(spec, by="repair", key=key, about=tool.tool_id)
        except ConfigurationError:
            return key
        telemetry.log.warning("creation.repair", tool=tool.tool_id, id=task.id, why=failing.why)
        return task.id


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()
