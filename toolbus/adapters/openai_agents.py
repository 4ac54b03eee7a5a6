"""Use the tools of a bus as ``FunctionTool`` in OpenAI's Agents SDK (``toolbus[openai-agents]``)."""

from __future__ import annotations

from functools import partial
from typing import Any

try:
    from agents import FunctionTool, RunContextWrapper
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the adapter needs OpenAI's Agents SDK: pip install 'toolbus[openai-agents]' ({error})", name=error.name
    ) from None

from toolbus.adapters.outcomes import outcome
from toolbus.client.executor.executor import ToolExecutor


def function_tools(executor: ToolExecutor, *, strict: bool = False) -> list[FunctionTool]:
    """Return the tools that an executor may call now, for ``Agent(tools=…)``.

    Each tool is offered while it is available; call this again for tools that came later. A failure becomes an observation that
    tells the model what to do next, and never ends the run.

    Args:
        strict: write schemas in a form that the provider can enforce, wherever possible.
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
        is_enabled=partial(_is_available, executor, name),
    )
    # Set afterwards, because the constructor would convert a schema that is already strict once more.
    made.strict_json_schema = bool(function.get("strict"))
    return made


def _is_available(executor: ToolExecutor, name: str, _context: RunContextWrapper[Any], _agent: object) -> bool:
    tool = executor.find(name)
    return tool is not None and tool.available
