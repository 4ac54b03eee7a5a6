"""Import ``chat2graph.yml``: its tools, actions, chains, operators and experts; each entry that is wrong is reported."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from toolbus.bus.support.safe_text import described, is_a, type_name
from toolbus.bus.values.results import ConfigurationError, ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.bus.worker.loading import MissingModuleError, import_module
from toolbus.compat.chat2graph.mcp import McpService
from toolbus.compat.chat2graph.toolkit import (
    McpConfig,
    McpTransportConfig,
    McpTransportType,
    Service,
    Tool,
    ToolGroupType,
    Toolkit,
    ToolResourceType,
)
from toolbus.compat.facade import finished
from toolbus.toolkit.graph import Action, ToolGroup, recommend_subgraph
from toolbus.toolkit.graph import Tool as GraphTool
from toolbus.toolkit.graph import Toolkit as Graph
from toolbus.toolkit.presets import MAX_BYTES, LiveGroup, Source, read_preset


class OperatorEntry(msgspec.Struct, frozen=True):
    """An operator; ``actions`` are names. Operators have no name of their own, so it is the expert's, with a number if it has several."""

    path: str
    id: str
    instruction: str
    output_schema: str
    actions: tuple[str, ...]


class ExpertEntry(msgspec.Struct, frozen=True):
    """An expert; ``operators`` are ids, in the order of its workflow."""

    name: str
    description: str
    operators: tuple[str, ...]


Problem = tuple[str, str]
"""A path (``$.actions[3].tools[0]``), and what is wrong there."""

SECTIONS = ("app", "plugin", "reasoner", "tools", "actions", "toolkit", "operators", "experts", "leader", "knowledgebase", "memory", "env")
LEADER = "Leader"

_MOST_NAME = 256
_MOST_MERGES = 32
_ABSENT = object()


class _UnusableError(Exception):
    """A tool can't be had; has the path of what is wrong, and what that is."""


class _Reader:
    """Reads a document.

    Args:
        rename: beginnings of modules' names, and what stands in their place.
        connect: ask MCP servers for their tools, which starts those whose transport is STDIO.

    Attributes:
        problems: what can't be used.
        actions: by name, each with the names of its tools.
        operators: by id.
    """

    def __init__(self, rename: Mapping[str, str], *, connect: bool) -> None:
        self._rename = rename
        self._connect = connect
        # None for one that can't be had, whose name is known all the same.
        self._tools: dict[str, GraphTool | ToolGroup | None] = {}
        self._served: dict[str, str] = {}
        self._ids: set[str] = set()
        self.problems: list[Problem] = []
        self.actions: dict[str, tuple[Action, tuple[str, ...]]] = {}
        self.operators: dict[str, OperatorEntry] = {}

    def imported(self, document: object) -> Imported:
        """Return what can be used."""
        if not isinstance(document, dict):
            self._note("$", f"the file is a mapping of sections ({', '.join(SECTIONS)}), not {_shown(document)}")
            document = {}
        for section in document:
            if section not in SECTIONS:
                self._note(f"$.{section}", f"there is no section {str(section)[:80]!r}; the sections are {', '.join(SECTIONS)}")
        app = document.get("app") or {}
        if not isinstance(app, dict):
            self._note("$.app", f"it is a mapping, not {_shown(app)}")
            app = {}
        for path, entry in self._mappings("$.tools", document.get("tools")):
            self._tool(path, entry)
        for path, entry in self._mappings("$.actions", document.get("actions")):
            self._action(path, entry)
        toolkit = self._graph(
            tuple(self._references(path, each, self.actions, "actions")) for path, each in self._list("$.toolkit", document.get("toolkit"))
        )
        experts = {each.name: each for each in self._experts(document.get("experts"))}
        self._leader(document.get("leader"))
        self._unused(document.get("operators"))
        name, description = self._text("$.app", app, "name") or "chat2graph", self._text("$.app", app, "desc")
        return Imported(name, description, toolkit, {name: action for name, (action, _) in self.actions.items()}, self.operators, experts)

    def _graph(self, chains: Iterable[Iterable[str]]) -> Toolkit:
        toolkit = Toolkit()
        service = Service(toolkit)
        callers: dict[str, list[tuple[Action, float]]] = {}
        for action, tools in self.actions.values():
            service.add_action(action)
            for name in tools:
                callers.setdefault(name, []).append((action, 1.0))
        for name, item in self._tools.items():
            if item is not None and name in callers:
                _add(service, item, callers[name])
            elif item is not None:
                # No action leads there, but callers of the bus may use the tool.
                toolkit.add_vertex(item.id, data=item)
        for chain in chains:
            for before, after in itertools.pairwise(chain):
                toolkit.add_edge(self.actions[before][0].id, self.actions[after][0].id, 1.0)
        return toolkit

    # -- entries ----------------------------------------------------------------------------------

    def _tool(self, path: str, entry: dict[str, Any]) -> None:
        name = self._name(path, entry, self._tools)
        kind = entry.get("type", "LOCAL_TOOL")
        if not name:
            return
        transport = entry.get("mcp_transport_config") or {}
        module = self._text(path, entry, "module_path") if kind == "LOCAL_TOOL" else ""
        if kind not in ("MCP", "LOCAL_TOOL"):
            self._note(f"{path}.type", f"the tool {name!r} has the type {_shown(kind)}, not LOCAL_TOOL or MCP; it is left out")
        elif kind == "MCP" and not isinstance(transport, dict):
            self._note(f"{path}.mcp_transport_config", f"it is a mapping, not {_shown(transport)}; the tool is left out")
        elif kind == "LOCAL_TOOL" and not module:
            self._note(f"{path}.module_path", f"the tool {name!r} needs the module that has its class; it is left out")
        else:
            self._tools[name] = None
            try:
                if kind == "MCP":
                    self._tools[name] = _group(path, name, transport, connect=self._connect)
                else:
                    self._tools[name] = self._made(path, name, module, self._text(path, entry, "desc"))
            except _UnusableError as error:
                self._note(*error.args)

    def _made(self, path: str, name: str, module: str, description: str) -> GraphTool:
        for old, new in self._rename.items():
            if module.startswith(old):
                module = new + module.removeprefix(old)
                break
        try:
            cls = getattr(import_module(module), name, None)
        except MissingModuleError:
            advice = "install it, or say what stands in place of the beginning of its name (rename)"
            raise _UnusableError(f"{path}.module_path", f"there is no module {module!r}: {advice}; the tool {name!r} is left out") from None
        except ConfigurationError as error:
            raise _UnusableError(f"{path}.module_path", f"{error}; the tool {name!r} is left out") from None
        except ValueError as error:
            raise _UnusableError(f"{path}.module_path", f"{module[:80]!r} is no module's name ({error}); the tool is left out") from None
        if not callable(cls):
            raise _UnusableError(f"{path}.name", f"the module {module} has no class {name!r}; the tool is left out")
        try:
            made = cls()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's class raises
            raise _UnusableError(path, f"{module}.{name} can't be made: {described(error)}; the tool is left out") from None
        tool = made if is_a(made, GraphTool) else _adopted(made, description)
        if tool is None:
            raise _UnusableError(f"{path}.name", f"{module}.{name} makes a {type_name(made)}, which is no Tool; it is left out")
        # The file's names are unique and stay the same, unlike the ids that tools draw.
        tool._id = name
        if (other := self._served.setdefault(tool.name, name)) != name:
            why = f"its tool is named {tool.name!r} like that of {other!r}, and names on a bus are unique; it is left out"
            raise _UnusableError(path, why)
        return tool

    def _action(self, path: str, entry: dict[str, Any]) -> None:
        name = self._name(path, entry, self.actions)
        if not name:
            return
        vertex = self._text(path, entry, "id") or name
        if len(vertex) > _MOST_NAME or vertex in self._tools or vertex in self._ids:
            self._note(f"{path}.id", f"the id {vertex[:80]!r} of the action {name!r} is too long or taken; the action is left out")
            return
        tools = tuple(dict.fromkeys(self._references(f"{path}.tools", entry.get("tools"), self._tools, "tools")))
        self._ids.add(vertex)
        self.actions[name] = Action(vertex, name, self._text(path, entry, "desc")), tools

    def _experts(self, section: object) -> Iterator[ExpertEntry]:
        taken: dict[str, object] = {LEADER: None}
        for path, entry in self._mappings("$.experts", section):
            profile = entry.get("profile")
            if not isinstance(profile, dict):
                self._note(f"{path}.profile", "an expert has a profile with its name; it is left out")
                continue
            name = self._name(f"{path}.profile", profile, taken)
            if not name:
                continue
            taken[name] = None
            found: list[tuple[str, dict[str, Any]]] = []
            for at, stage in self._list(f"{path}.workflow", entry.get("workflow")):
                found += self._mappings(at, stage)
            ids = [f"{name}/{number}" if len(found) > 1 else name for number in range(1, len(found) + 1)]
            made = [each for each, (at, operator) in zip(ids, found, strict=True) if self._operator(at, operator, each)]
            yield ExpertEntry(name, self._text(f"{path}.profile", profile, "desc"), tuple(made))

    def _operator(self, path: str, entry: dict[str, Any], id: str) -> bool:
        if len(id) > _MOST_NAME or id in self.operators:
            self._note(path, f"the operator's id {id[:80]!r} is too long or taken; it is left out")
            return False
        actions = tuple(dict.fromkeys(self._references(f"{path}.actions", entry.get("actions"), self.actions, "actions")))
        if not actions:
            self._note(path, f"the operator {id!r} has no action to start at, so nothing is recommended to it")
        texts = (self._text(path, entry, "instruction"), self._text(path, entry, "output_schema"))
        self.operators[id] = OperatorEntry(path, id, *texts, actions)
        return True

    def _leader(self, section: object) -> None:
        if section is None:
            return
        if not isinstance(section, dict):
            self._note("$.leader", f"it is a mapping, not {_shown(section)}")
        elif section.get("actions"):
            self._operator("$.leader", section, LEADER)

    def _unused(self, section: object) -> None:
        """Read the operators that stand in no workflow; the others are aliases of entries here."""
        used = {(each.instruction, each.output_schema) for each in self.operators.values()}
        for number, (path, entry) in enumerate(self._mappings("$.operators", section), 1):
            if (entry.get("instruction") or "", entry.get("output_schema") or "") not in used:
                self._note(path, f"the operator stands in no expert's workflow; it is imported as 'operator {number}'")
                self._operator(path, entry, f"operator {number}")

    # -- values -----------------------------------------------------------------------------------

    def _note(self, path: str, problem: str) -> None:
        self.problems.append((path, problem))

    def _list(self, path: str, value: object) -> Iterator[tuple[str, Any]]:
        if value is None:
            return
        if not isinstance(value, list):
            self._note(path, f"it is a list, not {_shown(value)}")
            return
        for index, each in enumerate(value):
            yield f"{path}[{index}]", each

    def _mappings(self, path: str, value: object) -> Iterator[tuple[str, dict[str, Any]]]:
        for at, each in self._list(path, value):
            if isinstance(each, dict):
                yield at, _merged(each)
            else:
                self._note(at, f"an entry is a mapping, not {_shown(each)}; it is left out")

    def _text(self, path: str, entry: dict[str, Any], key: str) -> str:
        value = entry.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self._note(f"{path}.{key}", f"it is a text, not {_shown(value)}; it is left empty")
        return ""

    def _name(self, path: str, entry: dict[str, Any], taken: dict[str, Any]) -> str:
        """Return the entry's name, or an empty text when it can't be used."""
        name = entry.get("name", _ABSENT)
        if not isinstance(name, str) or not 1 <= len(name) <= _MOST_NAME:
            shown = "it has none" if name is _ABSENT else f"not {_shown(name)}"
            self._note(f"{path}.name", f"an entry needs a name of 1 to {_MOST_NAME} characters, {shown}; it is left out")
            return ""
        if name in taken:
            self._note(f"{path}.name", f"the name {name!r} is taken by an entry above; this one is left out")
            return ""
        return name

    def _references(self, path: str, value: object, known: dict[str, Any], section: str) -> Iterator[str]:
        for at, each in self._list(path, value):
            name = each.get("name") if isinstance(each, dict) else each
            if not isinstance(name, str):
                self._note(at, f"expected an alias or a name of one of the {section}, got {_shown(each)}")
            elif name not in known:
                self._note(at, f"there is no usable entry {name[:80]!r} among the {section}")
            else:
                yield name


def _merged(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with the entries of its merge keys (``<<: *alias``) below its own."""
    for _ in range(_MOST_MERGES):
        if "<<" not in entry:
            break
        below = entry["<<"]
        found: dict[str, Any] = {}
        for each in reversed(below if isinstance(below, list) else [below]):
            found |= each if isinstance(each, dict) else {}
        entry = {**found, **{key: value for key, value in entry.items() if key != "<<"}}
    return entry


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, str)):
        return {dict: "a mapping", list: "a list", str: "a text"}[type(value)] if value else "an empty one"
    return "empty" if value is None else repr(value)[:80]


_CONNECTING = 30.0


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


def _adopted(made: Any, described_as: str) -> GraphTool | None:
    """Return a tool for an object of another Tool class that has the same properties."""
    name, function = getattr(made, "name", None), getattr(made, "function", None)
    if not isinstance(name, str) or not callable(function):
        return None
    return Tool(name, str(getattr(made, "description", "") or described_as), function)


def _group(path: str, name: str, transport: Mapping[str, Any], *, connect: bool) -> ToolGroup:
    if not connect:
        return LiveGroup(name, name, group=name)
    try:
        service = McpService(McpConfig(ToolGroupType.MCP, name, _transport(transport)))
        service._id = name
        listed = finished(_in_time(service))
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a server of the user's, or its configuration
        raise _UnusableError(path, f"the MCP server {name!r} is left out: {described(error)}") from None
    if not listed:
        raise _UnusableError(path, f"the MCP server {name!r} has no tools; it is left out")
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


THRESHOLD, HOPS = 0.5, 0
"""The score and the number of hops that every operator of that project has."""


@dataclass(eq=False)
class Imported:
    """A file's graph, operators and experts.

    Attributes:
        toolkit: the graph; vertices have the names of the file, and actions the ids that it gives them.
        problems: one line for each entry that is wrong, with file, line and path; the other entries were imported.
        operators: the operators, with their instructions; ``Leader`` starts at the leader's actions.
        experts: the experts, with the ids of their operators.
    """

    _name: str
    _description: str
    toolkit: Toolkit
    _actions: Mapping[str, Action]
    operators: dict[str, OperatorEntry]
    experts: dict[str, ExpertEntry]
    problems: list[str] = field(default_factory=list)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools, for a worker of the module that holds this."""
        return self.toolkit.__toolbus_tools__()

    def toolkit_of(self, expert: str) -> Graph:
        """Return the part of the graph that an expert's operators see.

        Raises:
            ToolkitError: there is no such expert.
        """
        found = self.experts.get(expert)
        if found is None:
            raise ToolkitError(f"there is no expert {expert!r} (there are: {', '.join(self.experts) or 'none'})")
        seen: dict[str, None] = {}
        for operator in found.operators:
            starts = [self._actions[name] for name in self.operators[operator].actions]
            seen |= dict.fromkeys(recommend_subgraph(self.toolkit, starts, threshold=THRESHOLD, hops=HOPS).vertices())
        return self.toolkit.subgraph(list(seen))

    def preset(self) -> dict[str, Any]:
        """Return the graph and the operators as a preset, whose tools are those that a worker of the same file serves.

        An operator's output schema stands at the end of its instruction.
        """
        items = dict(self.toolkit.items())
        actions = [
            {
                "id": vertex,
                "name": item.name,
                "description": item.description,
                "next": [to for to in self.toolkit.successors(vertex) if isinstance(items.get(to), Action)],
                "call": [to for to in self.toolkit.successors(vertex) if isinstance(items.get(to), GraphTool | ToolGroup)],
            }
            for vertex, item in items.items()
            if isinstance(item, Action)
        ]
        found = [(vertex, item) for vertex, item in items.items() if isinstance(item, ToolGroup)]
        groups = [{"id": vertex, "name": group.name, **self._members(vertex, group)} for vertex, group in found]
        tools = [{"id": vertex, "name": item.name, "bus": item.name} for vertex, item in items.items() if isinstance(item, GraphTool)]
        made = {
            "name": re.sub(r"[^A-Za-z0-9_.-]", "-", self._name)[:128],
            "description": self._description,
            "tools": tools,
            "groups": groups,
            "actions": actions,
            "operators": [self._operator(each) for each in self.operators.values()],
        }
        read_preset(msgspec.json.encode(made))
        return made

    def _members(self, id: str, group: ToolGroup) -> dict[str, Any]:
        return {"group": group.group} if isinstance(group, LiveGroup) else {"tools": self.toolkit.successors(id)}

    def _operator(self, operator: OperatorEntry) -> dict[str, Any]:
        schema = f"\n\nAnswer in this form:\n{operator.output_schema}" if operator.output_schema else ""
        starts = [self._actions[name].id for name in operator.actions]
        made = {"id": operator.id, "instruction": operator.instruction + schema, "actions": starts}
        return {**made, "threshold": THRESHOLD, "hops": HOPS}


def import_config(path: str | Path, *, rename: Mapping[str, str] | None = None, connect: bool = False) -> Imported:
    """Read a ``chat2graph.yml``, import the modules of its tools, and build its graph. Only for files that are trusted like code.

    Args:
        path: the file.
        rename: beginnings of modules' names, and what stands in their place: ``{"app.": "mine."}``.
        connect: ask MCP servers for their tools now, which starts the commands of those with the transport STDIO. Otherwise the
            group of a server is the bus's tools of the registry group with the server's name.

    Raises:
        ToolkitError: the file can't be read or is no YAML; what is wrong within it is in ``problems``.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ToolkitError(f"can't read {str(path)!r}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ToolkitError(f"{path}: a file may have {MAX_BYTES:,} bytes, this one has more")
    source = Source(data, str(path))
    reader = _Reader(rename or {}, connect=connect)
    imported = reader.imported(source.parse())
    imported.problems += [_line(source, *problem) for problem in reader.problems]
    return imported


def _line(source: Source, path: str, problem: str) -> str:
    return str(source.error(path, problem)).replace(": preset: ", ": ", 1) if path == "$" else str(source.error(path, problem))
