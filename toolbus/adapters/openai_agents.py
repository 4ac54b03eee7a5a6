"""Use the tools of a bus as ``FunctionTool`` in OpenAI's Agents SDK (``toolbus[openai-agents]``)."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

try:
    from agents import FunctionTool, RunConfig, RunContextWrapper
    from agents.run_config import ToolErrorFormatterArgs
    from agents.tool_context import ToolContext
    from agents.tool_guardrails import ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolInputGuardrailData
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the adapter needs OpenAI's Agents SDK: pip install 'toolbus[openai-agents]' ({error})", name=error.name
    ) from None

from toolbus.adapters.home import AnyExecutor, calling, executor_of, read_at_home, run_at_home
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.toolcalls import Place, content_of
from toolbus.bus.client.tools.tool import Tool


def function_tools(executor: AnyExecutor, *, strict: bool = False) -> list[FunctionTool]:
    """Return the tools that an executor may call now, for ``Agent(tools=…)``.

    Each tool is offered while it is available; call this again for tools that came later. A failure becomes an observation that
    tells the model what to do next, and never ends the run.

    Args:
        executor: of a bus, or of a ``toolbus.sync.ToolBus``.
        strict: write schemas in a form that the provider can enforce, wherever possible.

    Raises:
        ConfigurationError: the bus is not open.
    """
    own = executor_of(executor)
    functions = read_at_home(own, lambda: _functions(own, strict))
    return [_function_tool(own, function, ordered) for function, ordered in functions]


def run_config(executor: AnyExecutor, **settings: Any) -> RunConfig:
    """Return a ``RunConfig`` with which a model that calls a tool that does not exist is told so, instead of ending the run.

    Args:
        executor: the one whose tools the agents have.
        settings: everything else that a ``RunConfig`` takes. A ``tool_error_formatter`` words all other errors.
    """
    own = executor_of(executor)
    formatter = settings.pop("tool_error_formatter", None)

    async def told(error: ToolErrorFormatterArgs[Any]) -> str | None:
        if error.kind == "tool_not_found":
            return await run_at_home(own, lambda _: _not_found(own, error.tool_name, error.call_id))
        said = None if formatter is None else formatter(error)
        return await said if inspect.isawaitable(said) else said

    return RunConfig(tool_not_found_behavior="return_error_to_model", tool_error_formatter=told, **settings)


def _functions(executor: ToolExecutor, strict: bool) -> list[tuple[dict[str, Any], bool]]:
    """Return each definition, and whether the tool's calls have an order."""
    found = [definition["function"] for definition in executor.tools.definitions("openai", strict=strict)]
    tools = [executor.find(function["name"]) for function in found]
    return [(each, tool is not None and executor.is_ordered(tool)) for each, tool in zip(found, tools, strict=True)]


def _function_tool(executor: ToolExecutor, function: dict[str, Any], ordered: bool) -> FunctionTool:
    name: str = function["name"]
    places: WeakKeyDictionary[ToolContext[Any], Place] = WeakKeyDictionary()
    # The input of a run's latest turn for which the tool was offered: a new list in each turn.
    turns: WeakKeyDictionary[RunContextWrapper[Any], object] = WeakKeyDictionary()

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        start = calling(executor, name, arguments, context.tool_call_id, places.pop(context, None))
        observation, _ = await run_at_home(executor, start)
        return content_of(observation, "openai_agents")

    async def take_place(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Take the place of a call when the SDK starts it, in the model's order: hooks, which wait as they like, run after a guardrail."""

        async def take(_: object) -> Place:
            return executor.place(executor.find(name))

        place = places[data.context] = await run_at_home(executor, take)
        # The bus may be closed by then.
        home, task = executor.loop, asyncio.current_task()

        def ended(_: object) -> None:
            # A call that a hook has ended never claims its place.
            with suppress(RuntimeError):
                home.call_soon_threadsafe(place.leave)

        if task is not None:
            task.add_done_callback(ended)
        return ToolGuardrailFunctionOutput.allow()

    async def is_offered(context: RunContextWrapper[Any], _agent: object) -> bool:
        """Return whether the tool is available, or was offered for this turn: the SDK asks again before it runs a turn's calls."""

        async def find(_: object) -> Tool | None:
            return executor.find(name)

        tool = await run_at_home(executor, find)
        if tool is not None and tool.available:
            turns[context] = context.turn_input
            return True
        return turns.get(context) is context.turn_input

    made = FunctionTool(
        name=name,
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
        is_enabled=is_offered,
        tool_input_guardrails=[ToolInputGuardrail(take_place, "toolbus_order")] if ordered else None,
    )
    # Set afterwards, because the constructor would convert a schema that is already strict once more.
    made.strict_json_schema = bool(function.get("strict"))
    return made


async def _not_found(executor: ToolExecutor, name: str, call: str) -> str:
    """Return the observation of a call of a tool that the agent was not given, though others may have it."""
    found = executor.find(name)
    others = executor.tools.filter(names=[each for each in executor.tools if found is None or each != found.name])
    observation, _ = await calling(executor.narrowed(others), name, {}, call)(None)
    return observation.text
