"""Use the tools of a bus as a toolset in Pydantic AI (``toolbus[pydantic-ai]``)."""

from __future__ import annotations

from typing import Any

try:
    from pydantic_ai import RunContext, ToolDefinition, ToolReturn
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the adapter needs Pydantic AI: pip install 'toolbus[pydantic-ai]' ({error})", name=error.name) from None

from toolbus.adapters.outcomes import outcome
from toolbus.client.executor.executor import ToolExecutor

# The executor casts and validates arguments, with observations that a model understands.
_ANYTHING = SchemaValidator(core_schema.any_schema())


class BusToolset(AbstractToolset[Any]):
    """The tools that an executor may call, updated at each step of a run.

    The model reads the observation, also of a failure; the ``ToolResult`` is the tool return's ``metadata``.

    Args:
        id: id of the toolset, unique within an agent.
    """

    def __init__(self, executor: ToolExecutor, *, id: str = "toolbus") -> None:
        self._executor = executor
        self._id = id

    @property
    def id(self) -> str:
        """The id of the toolset."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools that are available now."""
        functions = [definition["function"] for definition in self._executor.tools.definitions("openai")]
        return {each["name"]: self._tool(each) for each in functions}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> ToolReturn:
        """Run a call."""
        content, result = await outcome(self._executor, name, tool_args, ctx.tool_call_id or "")
        return ToolReturn(content, metadata=result)

    def _tool(self, function: dict[str, Any]) -> ToolsetTool[Any]:
        definition = ToolDefinition(
            name=function["name"], description=function["description"], parameters_json_schema=function["parameters"]
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=_ANYTHING)
