"""OpenAI's Agents SDK: the tools of a bus as ``FunctionTool`` (``toolbus[openai-agents]``)."""

from __future__ import annotations

from functools import partial
from typing import Any

from agents import FunctionTool, RunContextWrapper
from agents.tool_context import ToolContext

from toolbus.adapters.outcomes import outcome
from toolbus.client.executor.executor import ToolExecutor


def function_tools(executor: ToolExecutor, *, strict: bool = False) -> list[FunctionTool]:
    """The tools that an executor may call now, for ``Agent(tools=…)``.

    Each is offered while it is there; ask again for tools that came later. A failure is an observation that tells the model what
    to do next, and never ends the run.

    Args:
        strict: say schemas so that the provider enforces them, wherever that is possible.
    """
    return [_function_tool(executor, definition["function"]) for definition in executor.tools.definitions("openai", strict=strict)]


def _function_tool(executor: ToolExecutor, function: dict[str, Any]) -> FunctionTool:
    name: str = function["name"]

    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        content, _ = await outcome(executor, name, arguments, context.tool_call_id)
        return content

    made = FunctionTool(
        name=name,
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
        is_enabled=partial(_is_there, executor, name),
    )
    # Said afterwards: the constructor would make a strict schema of what is one already, in its own way.
    made.strict_json_schema = bool(function.get("strict"))
    return made


def _is_there(executor: ToolExecutor, name: str, _context: RunContextWrapper[Any], _agent: object) -> bool:
    tool = executor.find(name)
    return tool is not None and tool.available
