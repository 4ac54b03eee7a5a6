"""Answer ``tasks/get``, ``tasks/update`` and ``tasks/cancel``."""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, RequestParams
from pydantic import Field

from toolbus.client.bus import ToolBus
from toolbus.client.tasks.state import TaskState
from toolbus.client.tasks.tasks import Task
from toolbus.mcp.caller import Caller, CallerOf, Context
from toolbus.mcp.client import Client
from toolbus.mcp.questions import OpenQuestions
from toolbus.mcp.tasks.document import TEXT_KEY, document_of
from toolbus.results import BrokerError, ConfigurationError

_AWAY = "the server can't be reached now"


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
        caller, client = self._admitted(context, params)
        try:
            task = await self.find(params.task_id, caller)
            state = await self._state(task)
            return await self.document(task, state, caller, elicits=client.elicits, start=_start(context))
        except (BrokerError, ConfigurationError) as error:
            raise MCPError(INTERNAL_ERROR, f"{_AWAY}: {error}") from None

    async def update(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        """Take in answers of the client's user.

        Raises:
            MCPError: as ``get``.
        """
        caller, _ = self._admitted(context, params)
        try:
            task = await self.find(params.task_id, caller)
            await OpenQuestions(self._bus, caller).take(params.input_responses, task.record.call)
        except (BrokerError, ConfigurationError) as error:
            raise MCPError(INTERNAL_ERROR, f"{_AWAY}: {error}") from None
        return {"resultType": "complete"}

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Ask for the end of a task.

        Raises:
            MCPError: as ``get``.
        """
        caller, _ = self._admitted(context, params)
        try:
            task = await self.find(params.task_id, caller)
            await self._bus.tasks.cancel(task)
        except (BrokerError, ConfigurationError, TimeoutError) as error:
            raise MCPError(INTERNAL_ERROR, f"{_AWAY}: {error}") from None
        return {"resultType": "complete"}

    # -- for subscriptions too --------------------------------------------------------------------

    async def find(self, id: str, caller: Caller) -> Task:
        """Return a task of this caller's user.

        Raises:
            MCPError: there is none.
            BrokerError: the server can't be reached.
        """
        task = await self._bus.tasks.find(id, caller.user)
        if task is None:
            raise MCPError(INVALID_PARAMS, "there is no such task: it has expired, or there never was one")
        return task

    async def document(self, task: Task, state: TaskState, caller: Caller, *, elicits: bool, start: int | None) -> dict[str, Any]:
        """Return what is known of a task, with what its handler asks now."""
        asked = state.question
        question = None if asked is None else await OpenQuestions(self._bus, caller).open(asked.id)
        tool = self._bus.tools.get(task.record.tool)
        return document_of(task, state, tool, question, elicits=elicits, start=start)

    async def _state(self, task: Task) -> TaskState:
        state = await self._bus.tasks.state(task)
        if state is None:
            raise MCPError(INVALID_PARAMS, "the task has expired: its result is not kept any more")
        return state

    def _admitted(self, context: Context, params: TaskParams) -> tuple[Caller, Client]:
        client = Client.of(context)
        client.must_have_tasks(context.method)
        if context.request is not None and decode_header_value(context.request.headers.get(MCP_NAME_HEADER, "")) != params.task_id:
            # Whatever routes requests by their headers must see the same as this process.
            raise MCPError(HEADER_MISMATCH, f"the header Mcp-Name of {context.method} is not the request's taskId")
        return self._caller_of(context), client


def _start(context: Context) -> int | None:
    """Return from where the client wants the task's text, or None."""
    meta = (context.params or {}).get("_meta")
    said = meta.get(TEXT_KEY) if isinstance(meta, dict) else None
    start = said.get("from") if isinstance(said, dict) else None
    return start if isinstance(start, int) and not isinstance(start, bool) and start >= 0 else None
