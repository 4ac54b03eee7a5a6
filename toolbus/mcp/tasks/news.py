"""Tell a client what happens to a task, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.client.bus import ToolBus
from toolbus.client.calls.call import Call
from toolbus.client.tasks.state import TaskState
from toolbus.client.tasks.tasks import Task
from toolbus.events import Reset, Text
from toolbus.mcp.caller import Caller
from toolbus.mcp.tasks.methods import TaskMethods
from toolbus.results import BrokerError

Send = Callable[[str, dict[str, Any]], Awaitable[None]]

# Seconds after which a task that says nothing is looked at: nobody tells of the end of one that never ran.
_LOOK = 2.0
# Seconds between two notifications of one task, in which its text is gathered.
_GATHERING = 0.05


class TaskNews:
    """Sends ``notifications/tasks`` for one task: what is known at first, and then each change until its end."""

    def __init__(self, bus: ToolBus, methods: TaskMethods, task: Task, caller: Caller, *, elicits: bool) -> None:
        self._bus = bus
        self._methods = methods
        self._task = task
        self._caller = caller
        self._elicits = elicits
        self._state = TaskState(updated=task.record.created)
        self._sent = 0
        self._changed = asyncio.Event()

    async def run(self, send: Send) -> None:
        """Send until the end of the task."""
        call = self._bus.tasks.attach(self._task)
        async with call, asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(call))
            looking = group.create_task(self._look())
            try:
                while self._state.result is None:
                    await self._changed.wait()
                    self._changed.clear()
                    await self._tell(send)
                    await asyncio.sleep(_GATHERING)
                if self._changed.is_set():
                    await self._tell(send)
            finally:
                reading.cancel()
                looking.cancel()

    async def _tell(self, send: Send) -> None:
        state = self._state
        start, self._sent = self._sent, len(state.text)
        document = await self._methods.document(self._task, state, self._caller, elicits=self._elicits, start=start)
        await send("notifications/tasks", document)

    async def _read(self, call: Call) -> None:
        async for event in call.events():
            self._state.hear(event)
            if isinstance(event, Reset):
                self._sent = 0
            if not isinstance(event, Text) or event.text:
                self._changed.set()

    async def _look(self) -> None:
        """Look at the task when nothing comes, until it has ended."""
        while self._state.result is None:
            await asyncio.sleep(_LOOK)
            with contextlib.suppress(BrokerError):
                task = await self._bus.tasks.find(self._task.id, self._task.user)
                state = None if task is None else await self._bus.tasks.state(task)
                if self._state.result is None and state is not None and state.result is not None:
                    self._state = state
                    self._changed.set()
