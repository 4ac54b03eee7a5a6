"""The tasks extension: calls that a client asks about later, at any server of the namespace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, RequestParams
from pydantic import Field

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tasks import Task, TaskState
from toolbus.bus.support.display import shortened
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.events import Reset, Text
from toolbus.bus.values.results import BrokerError
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.client import CallerOf, Client, Context, OpenQuestions, content_of, form, reached

TEXT_KEY = "toolbus/text"
"""The key of a task's text in its ``_meta``: ``{"from": offset, "text": …}``; offsets are in characters."""

POLL_MS = 1_000
"""Milliseconds that a client should wait between two looks at a task."""

_MOST_STATUS = 500


def created(task: Task) -> dict[str, Any]:
    """Return the result of a call that has become a task."""
    return {"resultType": "task", "status": "working", **_about(task, task.record.created)}


def _about(task: Task, updated: float) -> dict[str, Any]:
    record = task.record
    return {
        "taskId": task.id,
        "createdAt": _time(record.created),
        "lastUpdatedAt": _time(max(updated, record.created)),
        "ttlMs": int(record.kept * 1000),
        "pollIntervalMs": POLL_MS,
    }


def _working(state: TaskState, question: ConfirmationRequest | None, *, cancelled: bool) -> str:
    if cancelled:
        return "is being cancelled"
    if question is not None:
        return shortened(f"waits for a person: {question.question} (toolbus confirm allow {question.id})", _MOST_STATUS)
    if state.progress is not None:
        total = "" if state.progress.total is None else f"/{state.progress.total:g}"
        said = f": {state.progress.message}" if state.progress.message else ""
        return shortened(f"{state.progress.done:g}{total}{said}", _MOST_STATUS)
    if state.text:
        return state.text[-_MOST_STATUS:]
    return "runs" if state.started else "waits for a worker"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Send = Callable[[str, dict[str, Any]], Awaitable[None]]

# Seconds after which a task that says nothing is looked at: nobody tells of the end of one that never ran.
_LOOK = 2.0
# Seconds between two notifications of one task, in which its text is gathered.
_GATHERING = 0.05


class TaskParams(RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of ``tasks/update``."""

    input_responses: dict[str, Any] = Field(default_factory=dict)


class TaskMethods:
    """Answers requests about tasks, whichever process began them."""

    def __init__(self, bus: ToolBus, caller_of: CallerOf) -> None:
        self._bus = bus
        self._caller_of = caller_of

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Return what is known of a task; its text from an offset, if ``_meta`` asks for it.

        Raises:
            MCPError: there is no such task, or the client has no tasks.
        """
        async with self._asked(context, params) as (task, caller):
            state = await self._bus.tasks.state(task)
            if state is None:
                raise MCPError(INVALID_PARAMS, "the task has expired: its result is not kept any more")
            return await self.document(task, state, caller, elicits=Client.of(context).elicits, start=_start(context))

    async def update(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        """Take in answers of the client's user.

        Raises:
            MCPError: as ``get``.
        """
        async with self._asked(context, params) as (task, caller):
            await OpenQuestions(self._bus, caller).take(params.input_responses, task.record.call)
        return {"resultType": "complete"}

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Ask for the end of a task.

        Raises:
            MCPError: as ``get``.
        """
        async with self._asked(context, params) as (task, _):
            await self._bus.tasks.cancel(task)
        return {"resultType": "complete"}

    @contextlib.asynccontextmanager
    async def _asked(self, context: Context, params: TaskParams) -> AsyncIterator[tuple[Task, Principal]]:
        """Provide the task that a request is about, and who sent it.

        Raises:
            MCPError: they may not ask, there is no such task of their user, or the bus can't be used.
        """
        Client.of(context).must_have_tasks(context.method)
        if context.request is not None and decode_header_value(context.request.headers.get(MCP_NAME_HEADER, "")) != params.task_id:
            # Whatever routes requests by their headers must see the same as this process.
            raise MCPError(HEADER_MISMATCH, f"the header Mcp-Name of {context.method} is not the request's taskId")
        caller = self._caller_of(context)
        with reached():
            task = await self._bus.tasks.find(params.task_id, caller.user)
            if task is None:
                raise MCPError(INVALID_PARAMS, "there is no such task: it has expired, or there never was one")
            yield task, caller

    # -- for subscriptions too --------------------------------------------------------------------

    async def document(self, task: Task, state: TaskState, caller: Principal, *, elicits: bool, start: int | None) -> dict[str, Any]:
        """Return what is known of a task, with what its handler asks now.

        Args:
            task: the task.
            state: of the task.
            caller: who wants to know.
            elicits: the client can ask its user.
            start: the offset from which the text is wanted, in characters; None for no text.
        """
        asked = state.question
        question = None if asked is None else await OpenQuestions(self._bus, caller).open(asked.id)
        found = _about(task, state.updated)
        result = state.result
        if result is not None:
            error = result.error
            # Cancelled `once` work has begun, so that its outcome is unknown.
            if error is not None and (error.type == "cancelled" or (error.type == "outcome_unknown" and task.record.cancelled)):
                found |= {"status": "cancelled", "statusMessage": f"{error.type}: {error.message}" if error.message else error.type}
            else:
                found |= {"status": "completed", "result": content_of(result, self._bus.tools.get(task.record.tool), modern=True)}
        elif question is not None and elicits:
            found |= {"status": "input_required", "statusMessage": question.question, "inputRequests": {question.id: form(str(question))}}
        else:
            found |= {"status": "working", "statusMessage": _working(state, question, cancelled=task.record.cancelled > 0)}
        if start is not None:
            found["_meta"] = {TEXT_KEY: {"from": start, "text": state.text[start:], "attempt": state.attempt}}
        return found

    async def follow(self, task: Task, caller: Principal, send: Send, *, elicits: bool) -> None:
        """Send ``notifications/tasks`` for one task: what is known at first, and then each change until its end."""
        state, sent, changed = TaskState(updated=task.record.created), 0, asyncio.Event()

        async def report() -> None:
            nonlocal sent
            start, sent = sent, len(state.text)
            await send("notifications/tasks", await self.document(task, state, caller, elicits=elicits, start=start))

        async def read() -> None:
            nonlocal sent
            async for event in call.events():
                state.hear(event)
                if isinstance(event, Reset):
                    sent = 0
                if not isinstance(event, Text) or event.text:
                    changed.set()

        async def look() -> None:
            """Look at the task when nothing comes, until it has ended."""
            nonlocal state
            while state.result is None:
                await asyncio.sleep(_LOOK)
                with contextlib.suppress(BrokerError):
                    known = await self._bus.tasks.find(task.id, task.user)
                    found = None if known is None else await self._bus.tasks.state(known)
                    if state.result is None and found is not None and found.result is not None:
                        state = found
                        changed.set()

        call = self._bus.tasks.attach(task)
        async with call, asyncio.TaskGroup() as group:
            reading, looking = group.create_task(read()), group.create_task(look())
            try:
                while state.result is None:
                    await changed.wait()
                    changed.clear()
                    await report()
                    await asyncio.sleep(_GATHERING)
                if changed.is_set():
                    await report()
            finally:
                reading.cancel()
                looking.cancel()


def _start(context: Context) -> int | None:
    """Return from where the client wants the task's text, or None."""
    meta = (context.params or {}).get("_meta")
    said = meta.get(TEXT_KEY) if isinstance(meta, dict) else None
    start = said.get("from") if isinstance(said, dict) else None
    return start if isinstance(start, int) and not isinstance(start, bool) and start >= 0 else None
