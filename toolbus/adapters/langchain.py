"""LangChain: the tools of a bus as ``StructuredTool`` (``toolbus[langchain]``)."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import StructuredTool, ToolException
from pydantic import PrivateAttr

from toolbus.adapters.outcomes import outcome
from toolbus.client.executor import ToolExecutor
from toolbus.results import ToolResult


class BusTool(StructuredTool):
    """One tool of a bus: its content is the observation, its artifact the ``ToolResult``.

    A failure is a message with the status ``error`` that tells the model what to do next.
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
        self.coroutine = self._arun  # without one it would be run in a thread

    # Without the parameters `config` and `run_manager` of the class above: tools have arguments of these names.
    async def _arun(self, **arguments: Any) -> tuple[str, ToolResult]:  # type: ignore[override]
        content, result = await outcome(self._executor, self.name, arguments)
        if not result.success:
            raise ToolException(content)
        return content, result


def structured_tools(executor: ToolExecutor) -> list[BusTool]:
    """The tools that an executor may call now, for ``model.bind_tools`` and LangGraph's ``ToolNode``; they are to be awaited."""
    return [BusTool(executor, definition["function"]) for definition in executor.tools.definitions("openai")]
