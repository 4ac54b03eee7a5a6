"""Make groups from whole sets of tools: a service, a registry group, a Python module or service, or definitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from toolbus.client.tools.tool import Tool as BusTool
from toolbus.client.tools.view import ToolView
from toolbus.results import ToolkitError
from toolbus.safe_text import type_name
from toolbus.settings import Settings
from toolbus.toolkit.items import Tool, ToolGroup
from toolbus.worker.definition.service import ToolService
from toolbus.worker.serving.collect import collect


def tool_of_bus(tool: BusTool) -> Tool:
    """Return a toolkit tool for a tool of the bus; its id and name are the bus tool's name."""
    return Tool(tool.name, tool.name, tool.description, tool.parameters)


def group_of_service(tools: ToolView, service: str) -> ToolGroup:
    """Return a group of every tool of a service of the bus, sorted by name; its id is ``service:`` and the service's id.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"service:{service}", service, [tool for tool in tools.values() if tool.service == service], f"the service {service!r}")


def group_of_registry(tools: ToolView, group: str) -> ToolGroup:
    """Return a group of every tool of the bus in a registry group, sorted by name; its id is ``group:`` and the group's name.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"group:{group}", group, tools.filter(groups=[group]).values(), f"the group {group!r}")


def group_of_worker(target: ModuleType | ToolService | type[ToolService]) -> ToolGroup:
    """Return a group of every tool that a worker of this module or service serves, as tools of the bus, sorted by name.

    The group's id is ``worker:`` and the module's name or the service's id.

    Raises:
        ConfigurationError: it has no tools, or one of them is invalid.
    """
    served = collect(target, Settings())
    name = target.__name__ if isinstance(target, ModuleType) else served[0].id
    tools = {tool.name: Tool(tool.name, tool.name, tool.description, tool.schema) for each in served for tool in each.publication.tools}
    return _group(f"worker:{name}", name, served[0].publication.service.description, tools.values(), f"the worker {name!r}")


def group_of_module(module: ModuleType) -> ToolGroup:
    """Return a group of every public function of a module as a tool that runs in this process, sorted by name.

    Public functions are those in ``__all__``, else those that the module defines. Tool ids are qualified names, since functions
    of several modules may share a name. The group's id is ``module:`` and the module's name.

    Raises:
        ToolkitError: the module has none.
    """
    tools = (Tool.from_function(function, id=f"{function.__module__}.{function.__qualname__}") for function in _public(module))
    about = inspect.cleandoc(module.__doc__ or "").partition("\n")[0]
    return _group(f"module:{module.__name__}", module.__name__, about, tools, f"the module {module.__name__!r}")


def group_of_definitions(id: str, definitions: Iterable[object], *, name: str = "", description: str = "") -> ToolGroup:
    """Return a group of tools of the bus made from definitions, sorted by name; tool ids are the group's id, a slash, and the name.

    A definition is a mapping or an object with ``name``, ``description``, and ``inputSchema`` or ``input_schema`` (as MCP
    clients list a server's tools) or ``parameters``.

    Raises:
        ToolkitError: there is no definition, one has no name, or two have the same name.
    """
    tools: dict[str, Tool] = {}
    for index, definition in enumerate(definitions):
        tool = _defined(id, index, definition)
        if tool.name in tools:
            raise ToolkitError(f"the group {id!r} has two definitions of the tool {tool.name!r}")
        tools[tool.name] = tool
    return _group(id, name or id, description, tools.values(), f"the group {id!r}")


def _of_bus(id: str, name: str, tools: Iterable[BusTool], what: str) -> ToolGroup:
    found = list(tools)
    service = found[0].service_descriptor if found and id.startswith("service:") else None
    return _group(id, name, "" if service is None else service.description, map(tool_of_bus, found), what)


def _group(id: str, name: str, description: str, tools: Iterable[Tool], what: str) -> ToolGroup:
    found = sorted(tools, key=lambda tool: tool.name)
    if not found:
        raise ToolkitError(f"{what} has no tools")
    return ToolGroup(id, name, description, found)


def _public(module: ModuleType) -> list[Callable[..., Any]]:
    named = getattr(module, "__all__", None)
    names = [name for name in vars(module) if not name.startswith("_")] if named is None else named
    found = [getattr(module, name, None) for name in names]
    return [each for each in found if inspect.isfunction(each) and (named is not None or each.__module__ == module.__name__)]


def _defined(group: str, index: int, definition: object) -> Tool:
    about = definition if isinstance(definition, Mapping) else _Attributes(definition)
    name = about.get("name")
    if not isinstance(name, str) or not name:
        raise ToolkitError(f"definition {index} of the group {group!r} has no name")
    schema = about.get("inputSchema") or about.get("input_schema") or about.get("parameters") or {"type": "object"}
    if not isinstance(schema, Mapping):
        raise ToolkitError(f"the schema of the tool {name!r} in the group {group!r} is a {type_name(schema)}, not an object")
    return Tool(f"{group}/{name}", name, about.get("description") or "", dict(schema), bus_name=name)


class _Attributes:
    """Reads an object's attributes through a mapping's ``get``."""

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def get(self, name: str) -> Any:
        """Return an attribute, or None."""
        return getattr(self._owner, name, None)
