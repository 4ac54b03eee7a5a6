"""``RunningCall``: one call of a turn while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from toolbus.client.executor.context import ExecutorContext
from toolbus.client.executor.observers import Requested
from toolbus.client.executor.toolcalls import ModelCall, Place
from toolbus.client.tools.tool import Tool
from toolbus.results import ToolResult


class RunningCall:
    """One call of a turn.

    Attributes:
        index: its place in the turn, from 0.
        after: the calls that end before it begins.
        same: an earlier call of the turn that this one repeats under its id.
        requested: what observers were told of it last.
        changes: what was changed in the model's arguments, also when they are refused all the same.
    """

    __slots__ = ("after", "call", "changes", "done", "index", "place", "requested", "result", "same", "started", "tool")

    def __init__(self, call: ModelCall, index: int, tool: Tool | None) -> None:
        self.call = call
        self.index = index
        self.tool = tool
        self.place: Place | None = None
        self.after: list[RunningCall] = []
        self.same: RunningCall | None = None
        self.done = asyncio.Event()
        self.requested: Requested | None = None
        self.changes: list[str] = []
        self.result: ToolResult | None = None
        self.started = time.monotonic()

    @property
    def name(self) -> str:
        """The tool's own name, or what the model called it."""
        return self.call.name if self.tool is None else self.tool.name


def set_order(calls: Sequence[RunningCall], executor: ExecutorContext, *, concurrent: bool) -> None:
    """Set which calls wait for others: those of sequential tools, and repetitions of a call under its own id."""
    barrier: RunningCall | None = None
    seen: dict[str, RunningCall] = {}
    for running in calls:
        alone = not concurrent or executor.is_sequential(running.tool)
        if alone:
            running.after = [*calls[: running.index]]
            barrier = running
        elif barrier is not None:
            running.after = [barrier]
        twin = seen.setdefault(running.call.id, running)
        if twin is not running and (twin.call.name, twin.call.arguments) == (running.call.name, running.call.arguments):
            running.same = twin
