"""Use the tools of a bus as ``StructuredTool`` in LangChain and LangGraph (``toolbus[langchain]``, ``toolbus[langgraph]``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from langchain_core.tools import StructuredTool, ToolException
    from pydantic import PrivateAttr
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the adapter needs LangChain: pip install 'toolbus[langchain]' ({error})", name=error.name) from None

from toolbus import telemetry
from toolbus.adapters.outcomes import outcome
from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import ToolEvent
from toolbus.events import Text
from toolbus.results import Progress, ToolResult
from toolbus.schema.bounds import references
from toolbus.schema.work import unfolded

try:
    from langgraph.prebuilt import ToolRuntime
except ImportError:
    _emit: Callable[[object], None] | None = None
else:
    # It writes to the stream of the running call, wherever this object comes from; without a reader of deltas it does nothing.
    _emit = ToolRuntime(state=None, context=None, config={}, stream_writer=lambda _: None, tool_call_id=None, store=None).emit_output_delta

_MOST_REPLACED = 20_000
_MOST_RECURSIVE = 12


class BusTool(StructuredTool):
    """One tool of a bus: its content is the observation, its artifact the ``ToolResult``.

    A failure is a message with the status ``error`` that tells the model what to do next. In LangGraph, text and progress arrive
    as deltas of ``stream_mode="tools"``.
    """

    _executor: ToolExecutor = PrivateAttr()

    def __init__(self, executor: ToolExecutor, definition: dict[str, Any]) -> None:
        super().__init__(
            name=definition["name"],
            description=definition["description"],
            args_schema=definition["parameters"],
            response_format="content_and_artifact",
            handle_tool_error=True,
        )
        self._executor = executor
        self.coroutine = self._arun  # without a coroutine LangChain would run it in a thread

    # The parent's parameters `config` and `run_manager` are left out, because tools have arguments of these names.
    async def _arun(self, **arguments: Any) -> tuple[str, ToolResult]:  # type: ignore[override]
        content, result = await outcome(self._executor, self.name, arguments, observer=None if _emit is None else _delta)
        if not result.success:
            raise ToolException(content)
        return content, result


def structured_tools(executor: ToolExecutor) -> list[BusTool]:
    """Return the tools that an executor may call now, for ``model.bind_tools`` and LangGraph's ``ToolNode``; call them with await.

    LangChain replaces each reference in a schema by its target, so a tool whose schema would grow too large is left out.
    """
    definitions = [definition["function"] for definition in executor.tools.definitions("openai")]
    return [BusTool(executor, definition) for definition in definitions if _can_be_replaced(definition)]


def _can_be_replaced(definition: dict[str, Any]) -> bool:
    schema = definition["parameters"]
    size = unfolded(schema)
    # A recursive schema is replaced until it returns to itself, which takes long where many parts refer to many others.
    if size <= _MOST_REPLACED if size is not None else sum(1 for _ in references(schema)) <= _MOST_RECURSIVE:
        return True
    telemetry.log.warning("definition.set_aside", tool=definition["name"], format="langchain", error="its references make it too large")
    return False


def _delta(event: ToolEvent) -> None:
    if _emit is None:
        return
    if isinstance(event.event, Text):
        _emit(event.event.text)
    elif isinstance(event.event, Progress):
        _emit({"done": event.event.done, "total": event.event.total, "message": event.event.message})
