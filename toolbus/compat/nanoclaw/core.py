"""Definitions, results, the registry and the executor with nanoClaw's interface: synchronous, and nothing raises."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from toolbus import sync
from toolbus.bus.schema.documents import unique
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import reason_of, type_name
from toolbus.bus.values.results import ToolResult as BusResult
from toolbus.compat.facade import finished

DEFAULT_MODEL = "glm-5"
_MOST_CACHED = 1_000


@dataclass
class ToolDefinition:
    """A tool: the definition for the model, and the handler, which takes all arguments in one dict."""

    name: str
    description: str
    parameters: dict[str, Any]
    handler: Callable[[dict[str, Any]], Any]
    category: str = "general"

    def to_openai_format(self) -> dict[str, Any]:
        """Return the definition in the form of chat completions."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@dataclass
class ToolResult:
    """The result of a tool."""

    success: bool
    data: Any = None
    error: str | None = None

    @classmethod
    def ok(cls, data: Any = None) -> Self:
        """Return a success."""
        return cls(True, data)

    @classmethod
    def fail(cls, error: str) -> Self:
        """Return a failure."""
        return cls(False, None, error)

    def to_dict(self) -> dict[str, Any]:
        """Return exactly ``{"success", "data", "error"}``."""
        return {"success": self.success, "data": self.data, "error": self.error}


class ToolRegistry:
    """The tools of this process; ``ToolRegistry()`` always returns the same registry."""

    _instance: ToolRegistry | None = None
    _tools: dict[str, ToolDefinition]

    def __new__(cls) -> ToolRegistry:  # noqa: PYI034 - subclasses get the same instance, too
        """Return the one registry."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._tools = {}
        return cls._instance

    def register(self, tool: ToolDefinition) -> None:
        """Add a tool; replace one of the same name."""
        self._tools[tool.name] = tool

    def get(self, name: str) -> ToolDefinition | None:
        """Return a tool, or None."""
        return self._tools.get(name)

    def list_all(self) -> list[dict[str, Any]]:
        """Return every tool in the OpenAI form, sorted by name."""
        return [found.to_openai_format() for _, found in sorted(self._tools.items())]

    def execute(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a tool in this process; an exception becomes the answer's error."""
        tool = self.get(name)
        if tool is None:
            return ToolResult.fail(f"Tool not found: {name}").to_dict()
        try:
            result = finished(tool.handler(arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler must not end its agent
            return ToolResult.fail(reason_of(error)).to_dict()
        return result.to_dict() if isinstance(result, ToolResult) else ToolResult.ok(result).to_dict()


registry = ToolRegistry()
"""The tools of this process."""


class BusRegistry:
    """The available tools of a bus with the same interface, so that an executor calls them wherever they run.

    Args:
        bus: an open ``toolbus.sync.ToolBus``, or the view that ``bind`` returned, which holds the user and other options of calls.
        tools: the bus itself when ``bus`` is a view.
    """

    def __init__(self, bus: sync.ToolBus | sync.BoundBus, tools: sync.ToolBus | None = None) -> None:
        self._bus = bus
        self._tools = bus if isinstance(bus, sync.ToolBus) else tools

    def get(self, name: str) -> ToolDefinition | None:
        """Return a tool that can be called now, or None."""
        found = None if self._tools is None else self._tools.tools.get(name)
        if found is None or not found.available:
            return None
        return ToolDefinition(name, found.description, found.parameters, lambda arguments: self._call(name, arguments), found.category)

    def list_all(self) -> list[dict[str, Any]]:
        """Return every tool that can be called now in the OpenAI form, sorted by name."""
        definitions = (self.get(name) for name in ([] if self._tools is None else self._tools.tools))
        return [found.to_openai_format() for found in definitions if found is not None]

    def execute(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; a failure becomes the answer's error."""
        try:
            return self._call(name, arguments).to_dict()
        except Exception as error:  # noqa: BLE001 - as the local registry does
            return ToolResult.fail(reason_of(error)).to_dict()

    def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        # Executed like a model's call, which waits for a confirmation where the tool needs one.
        return answer_of(name, self._bus.execute(name, arguments))


class ToolExecutor:
    """Runs the tool calls of a turn one after the other, and builds requests.

    Args:
        registry: source of the tools; those of this process when left out.
        enable_cache: whether a call with the name and the arguments of an earlier, successful one is answered with its result.
            It is off unless asked for, unlike in nanoClaw: a tool that changes something must run each time it is called.
        cache_ttl: seconds for which such a result is used.
    """

    def __init__(self, registry: ToolRegistry | BusRegistry | None = None, enable_cache: bool = False, cache_ttl: float = 300) -> None:
        self.registry = ToolRegistry() if registry is None else registry
        self.enable_cache = enable_cache
        self.cache_ttl = cache_ttl
        self._cache: Latest[str, tuple[float, dict[str, Any]]] = Latest(_MOST_CACHED)

    def clear_history(self) -> None:
        """Forget all results of earlier calls."""
        self._cache.clear()

    def process_tool_calls(self, tool_calls: Iterable[Mapping[str, Any]], context: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return one ``tool`` message for each call, in order; its content is the JSON of ``{"success", "data", "error"}``.

        Args:
            tool_calls: calls of a chat completion.
            context: of the conversation; its ``project_id`` becomes an argument of tools whose names begin with ``file_``, as in nanoClaw.
        """
        return [self._message(call, context or {}) for call in tool_calls]

    def build_request(
        self, messages: list[dict[str, Any]], model: str = DEFAULT_MODEL, tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return a chat completion request with every tool, or with ``tools``; further keywords become its fields."""
        return {"model": model, "messages": messages, "tools": tools or self.registry.list_all(), "tool_choice": "auto", **kwargs}

    def _message(self, call: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        name = str(function.get("name") or "")
        try:
            arguments = _arguments(function.get("arguments"))
        except ValueError as error:
            result = ToolResult.fail(f"The arguments of {name} are not a JSON object: {error}. Call it again with valid JSON.").to_dict()
        else:
            if name.startswith("file_") and "project_id" in context:
                arguments = {**arguments, "project_id": context["project_id"]}
            result = self._executed(name, arguments)
        return {"role": "tool", "tool_call_id": call.get("id", ""), "name": name, "content": _json(result)}

    def _executed(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if not self.enable_cache:
            return self.registry.execute(name, arguments)
        key = json.dumps([name, arguments], sort_keys=True)
        made, result = self._cache.get(key, (0.0, {}))
        if result and time.monotonic() - made < self.cache_ttl:
            return result
        result = self.registry.execute(name, arguments)
        if result["success"]:
            self._cache[key] = (time.monotonic(), result)
        return result


def answer_of(name: str, result: BusResult) -> ToolResult:
    """Return a call's result in nanoClaw's form."""
    data = result.output if result.data is None else result.data
    if result.error is None:
        return ToolResult.ok(data)
    error = result.error
    message = f"Tool not found: {name}" if error.type == "not_found" and error.origin == "bus" else error.message or str(error)
    return ToolResult(False, data or None, message)


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given, object_pairs_hook=unique) if given.strip() else {}
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"it is a {type_name(given)}")  # noqa: TRY004 - reported to the model like other malformed text
    return given


def _json(result: dict[str, Any]) -> str:
    try:
        return json.dumps(result, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps(ToolResult.fail(f"The tool's answer can't be written as JSON: {error}").to_dict(), ensure_ascii=False)
