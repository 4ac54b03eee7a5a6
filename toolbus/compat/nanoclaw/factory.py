"""Make nanoClaw tools: the decorator, ``register``, and the built-in sets."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from toolbus.bus import telemetry
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.results import ToolResult as BusResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker import function as functions
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.worker import Worker
from toolbus.compat.facade import finished
from toolbus.compat.nanoclaw.builtin import city_weather, data_tools, file_tools
from toolbus.compat.nanoclaw.core import ToolDefinition, ToolResult, answer_of, registry

F = TypeVar("F", bound=Callable[..., Any])

_CRAWLER = ("web_search", "fetch_page", "crawl_batch")
_DATA = ("calculator",)
_WEATHER = ("get_weather",)


def tool(name: str, description: str, parameters: Mapping[str, Any], category: str = "general") -> Callable[[F], F]:
    """Register a function that takes all arguments in one dict, and return the function unchanged.

    A worker of its module serves it, and the registry of this process runs it here.
    """

    def decorate(function: F) -> F:
        register(name, function, description, parameters, category)
        return function

    return decorate


def register(
    name: str, handler: Callable[[dict[str, Any]], Any], description: str, parameters: Mapping[str, Any], category: str = "general"
) -> None:
    """Register a handler, in place of one of the same name."""
    registry.register(ToolDefinition(name, description, dict(parameters), handler, category))
    functions.tool(name, description, parameters, category, replace=True)(_served(name, handler))


def create_crawler_tools() -> list[ToolDefinition]:
    """Return web_search, fetch_page and crawl_batch."""
    return _built_in(_CRAWLER)


def create_data_tools() -> list[ToolDefinition]:
    """Return calculator, text_process and json_process, with nanoClaw's arguments."""
    return [*_built_in(_DATA), *data_tools()]


def create_weather_tools() -> list[ToolDefinition]:
    """Return get_weather, with nanoClaw's arguments; its report is toolbus's own, as text and numbers."""
    return [city_weather(each) for each in _built_in(_WEATHER)]


def create_file_tools(root: str = ".") -> list[ToolDefinition]:
    """Return file_read, file_write, file_delete, file_list, file_exists and file_mkdir for one folder."""
    return file_tools(root)


def init_tools() -> None:
    """Register the installed built-in tools in this process; tools that the application registered stay."""
    for made in (create_crawler_tools, create_data_tools, create_weather_tools):
        try:
            found = made()
        except ConfigurationError as error:
            telemetry.log.warning("nanoclaw.left_out", error=str(error))
            continue
        for each in found:
            if registry.get(each.name) is None:
                registry.register(each)


def _served(name: str, handler: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return the handler as a worker runs it: with one parameter that is no property of any schema, and toolbus's results."""

    async def coroutine(_given: dict[str, Any]) -> Any:
        return _bus_result(await handler(_given))

    def plain(_given: dict[str, Any]) -> Any:
        return _bus_result(handler(_given))

    function: Callable[..., Any] = coroutine if inspect.iscoroutinefunction(handler) else plain
    # The handler's module becomes the service. A name without dots marks a plain function, wherever the handler was defined.
    function.__module__ = getattr(handler, "__module__", None) or type(handler).__module__
    function.__name__ = function.__qualname__ = name.replace(".", "_")
    return function


def _bus_result(result: Any) -> Any:
    if not isinstance(result, ToolResult):
        # Text stays text; everything else, also None, is data.
        return result if isinstance(result, str) else BusResult.ok(result)
    if result.success:
        return BusResult.ok(result.data)
    failed = BusResult.fail(result.error or "the tool failed")
    return failed if result.data is None else BusResult(success=False, data=result.data, error=failed.error)


# -- built-in tools -----------------------------------------------------------------------------------


def _built_in(names: tuple[str, ...]) -> list[ToolDefinition]:
    found: list[ToolDefinition] = []
    missing: list[str] = []
    for name in names:
        try:
            found.append(_definition(name))
        except ImportError as error:
            missing.append(f"{name} ({error})")
    if not found:
        raise ConfigurationError(f"not installed: {', '.join(missing)}; pip install 'toolbus[workers]'")
    if missing:
        telemetry.log.warning("nanoclaw.left_out", error=", ".join(missing))
    return found


def _definition(name: str) -> ToolDefinition:
    """Return a built-in tool, from the module that has its name."""
    module = importlib.import_module(f"toolbus_workers.{name}")
    published = (tool for served in collect(module, Settings()) for tool in served.publication.tools)
    found = next((tool for tool in published if tool.name == name), None)
    if found is None:
        raise ImportError(f"toolbus_workers.{name} has no tool of that name")

    def handler(arguments: dict[str, Any]) -> Any:
        return finished(_run(module, name, arguments))

    return ToolDefinition(name, found.description, found.schema or {"type": "object"}, handler, found.category)


async def _run(module: ModuleType, name: str, arguments: dict[str, Any]) -> Any:
    """Run a tool in this process as a worker would: with its service's start-up, its checks and its limits."""
    async with Worker(module, url="memory://"), ToolBus("memory://") as bus:
        return answer_of(name, await bus.call(name, arguments))
