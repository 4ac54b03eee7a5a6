"""Use the tools of a bus as a toolset in Pydantic AI (``toolbus[pydantic-ai]``)."""

from __future__ import annotations

from typing import Any

try:
    from pydantic_ai import BinaryContent, ModelResponse, RunContext, ToolDefinition, ToolReturn
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the adapter needs Pydantic AI: pip install 'toolbus[pydantic-ai]' ({error})", name=error.name) from None

from toolbus.adapters.home import AnyExecutor, Asked, calling, executor_of, run_at_home
from toolbus.bus.schema.repair import parse
from toolbus.bus.values.results import ToolError


class _Said(dict[str, Any]):
    """Arguments as the framework shows them to its hooks, beside the text of the model, which the executor reads itself."""

    def __init__(self, text: str | bytes | bytearray) -> None:
        self.text = bytes(text) if isinstance(text, bytearray) else text
        try:
            self.read, _ = parse(self.text)
        except ToolError:
            self.read = {}
        super().__init__(self.read)


class _Anything:
    """Takes arguments as they are: the executor repairs, casts and validates them, with observations that a model understands."""

    def validate_json(self, input: str | bytes | bytearray, *, allow_partial: object = False, **options: Any) -> Any:
        """Return what a text says."""
        return _Said(input)

    def validate_python(self, input: Any, *, allow_partial: object = False, **options: Any) -> Any:
        """Return the arguments."""
        return input


_ANYTHING = _Anything()


class BusToolset(AbstractToolset[Any]):
    """The tools that an executor may call, updated at each step of a run.

    The model reads the observation, also of a failure; the ``ToolResult`` is the tool return's ``metadata``.

    Args:
        id: id of the toolset, unique within an agent.
    """

    def __init__(self, executor: AnyExecutor, *, id: str = "toolbus") -> None:
        self._executor = executor_of(executor)
        self._id = id

    @property
    def id(self) -> str:
        """The id of the toolset."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools that are available now."""
        definitions = await run_at_home(self._executor, lambda _: self._definitions())
        return {each["function"]["name"]: self._tool(each["function"]) for each in definitions}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> ToolReturn:
        """Run a call."""
        changed = not isinstance(tool_args, _Said) or tool_args != tool_args.read
        arguments: object = dict(tool_args) if changed else tool_args.text  # type: ignore[attr-defined]
        start = calling(self._executor, name, arguments, ctx.tool_call_id or "", _asked(ctx))
        observation, result = await run_at_home(self._executor, start)
        files = [BinaryContent(blob.data, media_type=blob.media_type) for blob in observation.shown]
        return ToolReturn([observation.text, *files] if files else observation.text, metadata=result)

    async def _definitions(self) -> list[dict[str, Any]]:
        return self._executor.tools.definitions("openai")

    def _tool(self, function: dict[str, Any]) -> ToolsetTool[Any]:
        definition = ToolDefinition(
            name=function["name"], description=function["description"], parameters_json_schema=function["parameters"]
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=_ANYTHING)


def _asked(ctx: RunContext[Any]) -> Asked | None:
    """Return the latest answer of the model, which has the call."""
    message = next((each for each in reversed(ctx.messages) if isinstance(each, ModelResponse)), None)
    if message is None or not ctx.tool_call_id:
        return None
    return Asked(message, [(each.tool_call_id, each.tool_name) for each in message.tool_calls], ctx.tool_call_id)
