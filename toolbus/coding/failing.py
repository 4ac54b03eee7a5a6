"""Find the tools that fail, with what is known of their failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from toolbus.broker.recent.records import RecentCall
from toolbus.platform.records import RecordedTool, ToolRoute

# Errors that say something of the tool, not of its caller.
_ITS_OWN = {"tool_error", "unavailable", "deadline_exceeded", "outcome_unknown"}
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


def failed_everywhere(tool: RecordedTool, routes: Iterable[ToolRoute]) -> Failing | None:
    """Return a tool that has been given up by every host that may run it."""
    of_tool = [route for route in routes if route.tool_id == tool.tool_id]
    if not of_tool or any(route.state != "failed" for route in of_tool):
        return None
    return Failing(tool, f"no host can run it: {of_tool[0].last_error or 'its program does not start'}")


def failing_calls(tool: RecordedTool, recent: Iterable[RecentCall], *, since: float, share: float, least: int) -> Failing | None:
    """Return a tool of whose calls since a time more than a share have failed."""
    calls = [call for call in recent if call.tool == tool.tool_id and call.ended >= since and call.outcome in {"succeeded", "failed"}]
    failed = [call for call in calls if call.error in _ITS_OWN]
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
