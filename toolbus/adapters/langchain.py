"""Use the tools of a bus as ``StructuredTool`` in LangChain and LangGraph (``toolbus[langchain]``, ``toolbus[langgraph]``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

try:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import StructuredTool, ToolException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the adapter needs LangChain: pip install 'toolbus[langchain]' ({error})", name=error.name) from None

from toolbus.adapters.home import AnyExecutor, Asked, Outcome, calling, executor_of, read_at_home, run_at_home, wait_at_home
from toolbus.bus import telemetry
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.client.executor.toolcalls import content_of
from toolbus.bus.schema.work import references, unfolded
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import Progress, ToolResult

try:
    from langgraph.prebuilt import ToolRuntime
except ImportError:
    ToolRuntime = None  # type: ignore[assignment,misc]
    _emit: Callable[[object], None] | None = None
else:
    # It writes to the stream of the running call, wherever this object comes from; without a reader of deltas it does nothing.
    _emit = ToolRuntime(state=None, context=None, config={}, stream_writer=lambda _: None, tool_call_id=None, store=None).emit_output_delta

_MOST_REPLACED = 20_000
_MOST_RECURSIVE = 12

# The model's id of the call that runs.
_call: ContextVar[str] = ContextVar("toolbus_langchain_call", default="")


@contextmanager
def _calling(id: str | None) -> Iterator[None]:
    token = _call.set(id or "")
    try:
        yield
    finally:
        _call.reset(token)


class BusTool(StructuredTool):
    """One tool of a bus: its content is the observation, images and files as parts, and its artifact the ``ToolResult``.

    A failure is a message with the status ``error`` that tells the model what to do next. In LangGraph, text and progress arrive
    as deltas of ``stream_mode="tools"``. ``invoke`` waits in its thread, ``ainvoke`` runs in any event loop.
    """

    def __init__(self, executor: ToolExecutor, definition: dict[str, Any]) -> None:
        func, coroutine = _functions(executor, definition)
        super().__init__(
            name=definition["name"],
            description=definition["description"],
            args_schema=definition["parameters"],
            response_format="content_and_artifact",
            handle_tool_error=True,
            func=func,
            coroutine=coroutine,
        )

    def run(self, *given: Any, tool_call_id: str | None = None, **options: Any) -> Any:
        """Run the tool and wait, see ``BaseTool.run``."""
        with _calling(tool_call_id):
            return super().run(*given, tool_call_id=tool_call_id, **options)

    async def arun(self, *given: Any, tool_call_id: str | None = None, **options: Any) -> Any:
        """Run the tool, see ``BaseTool.arun``."""
        with _calling(tool_call_id):
            return await super().arun(*given, tool_call_id=tool_call_id, **options)

    # The parent's parameters `config` and `run_manager` are left out, because tools have arguments of these names.
    def _run(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        return self.func(**arguments)  # type: ignore[misc]

    async def _arun(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        return await self.coroutine(**arguments)  # type: ignore[misc]


def structured_tools(executor: AnyExecutor) -> list[BusTool]:
    """Return the tools that an executor may call now, for ``model.bind_tools`` and LangGraph's ``ToolNode``.

    The executor may be that of a ``toolbus.sync.ToolBus``. LangChain replaces each reference in a schema by its target, so a tool
    whose schema would grow too large is left out.

    Raises:
        ConfigurationError: the bus is not open.
    """
    own = executor_of(executor)
    definitions = read_at_home(own, lambda: [definition["function"] for definition in own.tools.definitions("openai")])
    return [BusTool(own, definition) for definition in definitions if _can_be_replaced(definition)]


def _functions(executor: ToolExecutor, definition: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions of a tool, which hold nothing of it: what is shown of a tool shows its functions, too."""
    name: str = definition["name"]
    observer = None if _emit is None else _delta
    parameter = "runtime"
    while parameter in definition["parameters"].get("properties", {}):
        parameter += "_"

    def call(**arguments: Any) -> tuple[Any, ToolResult]:
        asked = _asked(arguments, parameter)
        return _answered(wait_at_home(executor, calling(executor, name, arguments, _call.get(), asked), observer))

    async def acall(**arguments: Any) -> tuple[Any, ToolResult]:
        asked = _asked(arguments, parameter)
        return _answered(await run_at_home(executor, calling(executor, name, arguments, _call.get(), asked), observer))

    if ToolRuntime is not None:
        # LangGraph hands over the state to a parameter of this type, under any name, which the model never sees.
        runtime = inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ToolRuntime)
        others = inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)
        for function in (call, acall):
            function.__annotations__ = {parameter: ToolRuntime}
            function.__signature__ = inspect.Signature([runtime, others])  # type: ignore[attr-defined,union-attr]
    return call, acall


def _asked(arguments: dict[str, Any], parameter: str) -> Asked | None:
    """Take LangGraph's state out of the arguments, and return the turn with which it ends."""
    runtime = arguments.get(parameter)
    if ToolRuntime is None or not isinstance(runtime, ToolRuntime):
        return None
    del arguments[parameter]
    state, own = runtime.state, runtime.tool_call_id
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", state)
    if not own or not isinstance(messages, list):
        return None
    message = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    if message is None:
        return None
    return Asked(message, [(each["id"] or "", each["name"]) for each in message.tool_calls], own)


def _answered(made: Outcome) -> tuple[Any, ToolResult]:
    observation, result = made
    content: Any = content_of(observation, "langchain")
    if not observation.success:
        raise ToolException(content)
    return content, result


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
