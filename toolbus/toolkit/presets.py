"""Read presets: graphs written as YAML or JSON, with the operators that use them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from toolbus.client.tools.tool import Tool as BusTool
from toolbus.collecting import without_collection
from toolbus.results import ConfigurationError, ToolkitError
from toolbus.toolkit.chain import add_chain
from toolbus.toolkit.checks import problems, target_of
from toolbus.toolkit.entries import Preset, ToolEntry
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup
from toolbus.toolkit.service import ToolkitService
from toolbus.toolkit.source import Source
from toolbus.worker.loading.modules import import_module

MAX_BYTES = 32 * 1024 * 1024


class LiveGroup(ToolGroup):
    """A group of the tools that a service or a registry group has at the moment.

    Args:
        service: id of the service; may be empty.
        group: name of the registry group; may be empty.
    """

    def __init__(self, id: str, name: str, description: str = "", tools: tuple[Tool, ...] = (), service: str = "", group: str = "") -> None:
        super().__init__(id, name, description, tools)
        self.service = service
        self.group = group

    def holds(self, tool: BusTool) -> bool:
        """Return whether a tool of the bus belongs to the service or the registry group."""
        return tool.service == self.service or self.group in tool.groups


def load_preset(path: str | Path) -> Preset:
    """Read a preset from a file; check all of it before any graph is made.

    Raises:
        ToolkitError: it can't be read or is invalid; the message begins with file and line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ToolkitError(f"can't read the preset {str(path)!r}: {error.strerror}") from None
    return read_preset(data, str(path))


def read_preset(data: bytes, name: str = "preset") -> Preset:
    """Read a preset from YAML or JSON; ``name`` stands for the file in messages.

    Raises:
        ToolkitError: see ``load_preset``.
    """
    if len(data) > MAX_BYTES:
        raise ToolkitError(f"{name}: a preset may have {MAX_BYTES:,} bytes, this one has more")
    source = Source(data, name)
    try:
        with without_collection():
            preset = msgspec.convert(source.parse(), Preset)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `")
        path, unknown = where.rstrip("`") or "$", re.search(r"unknown field `(.*)`", message)
        raise source.error(f"{path}.{unknown[1]}" if unknown else path, message) from None
    for path, problem in problems(preset):
        raise source.error(path, problem)
    return preset


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of presets, for editors."""
    made = msgspec.json.schema(Preset)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "toolbus toolkit preset", **made}


def toolkit_of(preset: Preset, *, functions: bool = True) -> Toolkit:
    """Build the graph of a preset.

    Args:
        functions: import the functions that it names; only for files that are trusted like code.

    Raises:
        ToolkitError: a function can't be imported, or functions are not allowed.
    """
    named = next((tool for tool in preset.tools if tool.function), None)
    if named is not None and not functions:
        raise ToolkitError(f"the tool {named.id!r} is the function {named.function!r}, which a published preset can't have")
    with without_collection():
        return _built(preset)


def _built(preset: Preset) -> Toolkit:
    toolkit = Toolkit()
    # Everything was checked when the preset was read, so it can be added without further checks.
    graph = toolkit.get_graph()
    graph.add_nodes_from((entry.id, {"data": _tool(entry)}) for entry in preset.tools)
    for group in preset.groups:
        members = tuple(tool for tool in map(toolkit.item, group.tools) if isinstance(tool, Tool))
        name = group.name or group.id
        if group.service or group.group:
            made: ToolGroup = LiveGroup(group.id, name, group.description, members, group.service, group.group)
        else:
            made = ToolGroup(group.id, name, group.description, members)
        toolkit.add_vertex(group.id, data=made)
        graph.add_edges_from((group.id, member) for member in group.tools)
    for action in preset.actions:
        following = [target_of(link) for link in action.next]
        graph.add_node(action.id, data=Action(action.id, action.name or action.id, action.description, following))
    for action in preset.actions:
        graph.add_edges_from(
            (action.id, link, {}) if isinstance(link, str) else (action.id, link.to, {"score": link.score})
            for link in (*action.next, *action.call)
        )
    service = ToolkitService(toolkit)
    for chain in preset.chains:
        add_chain(service, *(_part(toolkit, part) for part in chain))
    return toolkit


def _part(toolkit: Toolkit, part: Any) -> Any:
    return tuple(_part(toolkit, each) for each in part) if isinstance(part, (list, tuple)) else toolkit.item(part)


def _tool(entry: ToolEntry) -> Tool:
    name = entry.name or entry.id
    if not entry.function:
        return Tool(entry.id, name, entry.description, entry.parameters, bus_name=entry.bus or name)
    module, _, attribute = entry.function.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ConfigurationError, AttributeError) as error:
        raise ToolkitError(f"the function {entry.function!r} of the tool {entry.id!r} can't be imported: {error}") from None
    if not callable(function):
        raise ToolkitError(f"{entry.function!r} of the tool {entry.id!r} is not a function")
    return Tool(entry.id, name, entry.description, entry.parameters, function=function)
