"""Build the graph of a ``chat2graph.yml``: import the tools' classes and add everything that could be read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from toolbus.bus.support.safe_text import described, is_a, type_name
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.loading.modules import MissingModuleError, import_module
from toolbus.compat.awaiting import finished
from toolbus.compat.chat2graph.core.common.type import McpTransportType, ToolGroupType, ToolResourceType
from toolbus.compat.chat2graph.core.service.toolkit_service import Service
from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_service import McpService
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig, McpTransportConfig
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit
from toolbus.compat.chat2graph.importer.entries import Config, GroupEntry, ToolEntry
from toolbus.compat.chat2graph.importer.reading import Problem
from toolbus.toolkit.graph import Action, ToolGroup
from toolbus.toolkit.graph import Tool as GraphTool
from toolbus.toolkit.presets import LiveGroup

_CONNECTING = 30.0


def build(config: Config, problems: list[Problem], *, rename: Mapping[str, str], connect: bool) -> Toolkit:
    """Return the graph; add to ``problems`` the tools that can't be had.

    Args:
        rename: beginnings of modules' names, and what stands in their place.
        connect: ask MCP servers for their tools, which starts those whose transport is STDIO.
    """
    toolkit = Toolkit()
    service = Service(toolkit)
    called = _called(config, problems, rename, connect=connect)
    actions = {each.name: Action(each.id, each.name, each.description) for each in config.actions}
    for action in actions.values():
        service.add_action(action)
    callers: dict[str, list[tuple[Action, float]]] = {}
    for entry in config.actions:
        for name in entry.tools:
            callers.setdefault(name, []).append((actions[entry.name], 1.0))
    for name, item in called.items():
        if name in callers:
            _add(service, item, callers[name])
        else:
            # No action leads there, but callers of the bus may use the tool.
            toolkit.add_vertex(item.id, data=item)
    for chain in config.chains:
        for before, after in itertools.pairwise(chain):
            toolkit.add_edge(actions[before].id, actions[after].id, 1.0)
    return toolkit


def _called(config: Config, problems: list[Problem], rename: Mapping[str, str], *, connect: bool) -> dict[str, GraphTool | ToolGroup]:
    """Return the tools and groups that can be had, by their names in the file."""
    called: dict[str, GraphTool | ToolGroup] = {}
    served: dict[str, str] = {}
    for tool in config.tools:
        made = _tool(tool, problems, rename)
        if made is not None and served.setdefault(made.name, tool.name) != tool.name:
            why = f"its tool is named {made.name!r} like that of {served[made.name]!r}, and names on a bus are unique; it is left out"
            problems.append((tool.path, why))
        elif made is not None:
            called[tool.name] = made
    for group in config.groups:
        found = _group(group, problems, connect=connect)
        if found is not None:
            called[group.name] = found
    return called


def _add(service: Service, item: GraphTool | ToolGroup, calling: list[tuple[Action, float]]) -> None:
    if isinstance(item, GraphTool):
        service.add_tool(item, connected_actions=calling)
    elif isinstance(item, LiveGroup):
        # Its tools are not in the graph, so actions call the group itself.
        toolkit = service.get_toolkit()
        toolkit.add_vertex(item.id, data=item)
        for action, score in calling:
            toolkit.add_edge(action.id, item.id, score)
    else:
        service.add_tool_group(item, connected_actions=calling)


def _tool(entry: ToolEntry, problems: list[Problem], rename: Mapping[str, str]) -> GraphTool | None:
    module = entry.module
    for old, new in rename.items():
        if module.startswith(old):
            module = new + module.removeprefix(old)
            break
    try:
        cls = getattr(import_module(module), entry.name, None)
    except MissingModuleError:
        advice = "install it, or say what stands in place of the beginning of its name (rename)"
        problems.append((f"{entry.path}.module_path", f"there is no module {module!r}: {advice}; the tool {entry.name!r} is left out"))
        return None
    except ConfigurationError as error:
        problems.append((f"{entry.path}.module_path", f"{error}; the tool {entry.name!r} is left out"))
        return None
    except ValueError as error:
        problems.append((f"{entry.path}.module_path", f"{module[:80]!r} is no module's name ({error}); the tool is left out"))
        return None
    if not callable(cls):
        problems.append((f"{entry.path}.name", f"the module {module} has no class {entry.name!r}; the tool is left out"))
        return None
    try:
        made = cls()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's class raises
        problems.append((entry.path, f"{module}.{entry.name} can't be made: {described(error)}; the tool is left out"))
        return None
    tool = made if is_a(made, GraphTool) else _adopted(made, entry)
    if tool is None:
        problems.append((f"{entry.path}.name", f"{module}.{entry.name} makes a {type_name(made)}, which is no Tool; it is left out"))
        return None
    # The file's names are unique and stay the same, unlike the ids that tools draw.
    tool._id = entry.name
    return tool


def _adopted(made: Any, entry: ToolEntry) -> GraphTool | None:
    """Return a tool for an object of another Tool class that has the same properties."""
    name, function = getattr(made, "name", None), getattr(made, "function", None)
    if not isinstance(name, str) or not callable(function):
        return None
    return Tool(name, str(getattr(made, "description", "") or entry.description), function)


def _group(entry: GroupEntry, problems: list[Problem], *, connect: bool) -> ToolGroup | None:
    if not connect:
        return LiveGroup(entry.name, entry.name, group=entry.name)
    try:
        service = McpService(McpConfig(ToolGroupType.MCP, entry.name, _transport(entry.transport)))
        service._id = entry.name
        listed = finished(_in_time(service))
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a server of the user's, or its configuration
        problems.append((entry.path, f"the MCP server {entry.name!r} is left out: {described(error)}"))
        return None
    if not listed:
        problems.append((entry.path, f"the MCP server {entry.name!r} has no tools; it is left out"))
        return None
    return _Listed(service, listed)


async def _in_time(service: McpService) -> list[Any]:
    async with asyncio.timeout(_CONNECTING):
        return await service.list_tools()


def _transport(given: Mapping[str, Any]) -> McpTransportConfig:
    """Return a transport.

    Raises:
        ConfigurationError: a value has another type; says which.
    """
    for key, kind in (("url", str), ("command", str), ("args", list), ("env", dict), ("headers", dict)):
        if given.get(key) is not None and not isinstance(given[key], kind):
            raise ConfigurationError(f"{key} is a {type_name(given[key])}, not a {kind.__name__}")
    for key, words in (("transport_type", McpTransportType), ("resource_type", ToolResourceType)):
        if key in given and given[key] not in {word.value for word in words}:
            raise ConfigurationError(f"{key} is none of {', '.join(word.value for word in words)}")
    return McpTransportConfig.from_dict({key: value for key, value in given.items() if value is not None})


class _Listed(McpService):
    """A server whose tools were listed already."""

    def __init__(self, service: McpService, listed: list[Any]) -> None:
        super().__init__(service._mcp_config)
        self._id = service.id
        self._listed = listed

    async def list_tools(self) -> list[Any]:
        """Return the tools that were listed."""
        return self._listed
