"""Presets: graphs written as YAML or JSON, with the operators that use them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import ryaml
import yaml
from msgspec import Meta

from toolbus.bus.client.tools.tool import Tool as BusTool
from toolbus.bus.schema.documents import RepeatedKeyError, read_document
from toolbus.bus.support.lazy import without_collection
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.naming import SERVICE_ID
from toolbus.bus.values.results import ConfigurationError, ToolkitError
from toolbus.bus.worker.loading import find_installed, import_module
from toolbus.toolkit.graph import Action, Item, Tool, ToolGroup, Toolkit, edge_kind
from toolbus.toolkit.learning.evidence import Edge, ScoreFile
from toolbus.toolkit.service import ToolkitService, add_chain

_Id = Annotated[str, Meta(min_length=1, max_length=256)]
_Score = Annotated[float, Meta(ge=0, le=1)]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An edge to another entry; a bare id is short for a link with the score 1.0."""

    to: _Id
    score: _Score = 1.0


class ToolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool of the bus, or a function of this process.

    Attributes:
        id: id of its vertex.
        name: the name for the model; the id when left out.
        description: text for people where the tool is not available; the tool's own when left out.
        parameters: JSON Schema, also for people.
        bus: the bus tool's name; ``name`` when left out.
        function: ``module:function`` instead of a tool of the bus.
    """

    id: _Id
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    bus: str = ""
    function: str = ""


class GroupEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tools that come and go together: those of a service, of a registry group, or the listed ones.

    Attributes:
        id: id of its vertex.
        name, description: for people and models.
        service: id of a service; the group holds the tools that it has at the moment.
        group: name of a registry group; the group holds the tools that it has at the moment.
        tools: ids of further tool entries.
    """

    id: _Id
    name: str = ""
    description: str = ""
    service: str = ""
    group: str = ""
    tools: tuple[_Id, ...] = ()


class ActionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a task.

    Attributes:
        id: id of its vertex.
        name: the id when left out.
        description: text for the model.
        next: the actions that may follow.
        call: the tools and groups that it may call.
    """

    id: _Id
    name: str = ""
    description: str = ""
    next: tuple[str | Link, ...] = ()
    call: tuple[str | Link, ...] = ()


class OperatorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An agent that works with the graph: where it starts and how much of the graph it sees.

    Attributes:
        id: its name.
        instruction: the agent's instruction.
        actions: ids of the actions where it starts.
        threshold: lowest score of an edge that is followed.
        hops: how many Next edges are followed.
    """

    id: _Id
    instruction: str = ""
    actions: tuple[_Id, ...] = ()
    threshold: _Score = 0.5
    hops: Annotated[int, Meta(ge=0, le=100)] = 0


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph, and the operators that use it.

    Attributes:
        version: version of this format.
        name: name under which it is published; letters, digits, ``_``, ``.`` and ``-``.
        description: text for people.
        chains: sequences of ids: an action, what it calls, the next action; ids in a list are called together.
        revision: revision of the learned scores; empty when none were learned.
    """

    name: Annotated[str, Meta(pattern=f"^{SERVICE_ID.pattern}")]
    version: Literal[1] = 1
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    actions: tuple[ActionEntry, ...] = ()
    chains: tuple[tuple[Any, ...], ...] = ()
    operators: tuple[OperatorEntry, ...] = ()
    revision: str = ""

    def operator(self, id: str) -> OperatorEntry:
        """Return an operator.

        Raises:
            ToolkitError: there is none with that id.
        """
        for each in self.operators:
            if each.id == id:
                return each
        known = ", ".join(each.id for each in self.operators) or "none"
        raise ToolkitError(f"the preset {self.name!r} has no operator {id!r} (it has: {known})")


_BRACKET = re.compile(r"[\[\]{}]")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
# PyYAML makes a node of each value (about 10 µs), so lines are only looked up in the start of a larger text.
# Bytes of a text, and entries, from which it pays to pause the garbage collector: counting frozen objects takes milliseconds.
_LARGE, _MANY = 65_536, 500
_MOST_BRACKETS = 1000
_MOST_LOCATED = 2 * 1024 * 1024


class Source:
    """The text of a preset, as YAML (which includes JSON) or JSON.

    ``ryaml`` reads it, in a tenth of PyYAML's time and with bounds on nesting and on repeated aliases. PyYAML is only used to find
    the line of an error.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name

    def parse(self) -> Any:
        """Return the parsed document.

        Raises:
            ToolkitError: it is neither YAML nor JSON; the message names the line.
        """
        try:
            text = self._data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self._data.count(b"\n", 0, error.start) + 1
            raise ToolkitError(f"{self._name}:{line}: not UTF-8 text") from None
        if text.lstrip()[:1] == "{":
            try:
                return read_document(text, object)
            except RepeatedKeyError as error:
                key = json.dumps(error.key)
                raise ToolkitError(f"{self._name}{self._repeated(key)}: {error}") from None
            except ValueError:
                pass  # it may be YAML in flow style
        if _brackets(text) > _MOST_BRACKETS:
            raise ToolkitError(f"{self._name}: not YAML that a preset can be: more than {_MOST_BRACKETS} brackets are open")
        try:
            return ryaml.loads(text)
        except ryaml.InvalidYamlError as error:
            message = str(error)
            found = re.search(r" at line (\d+) column \d+", message)
            # The parser reports only the key of those that stand twice.
            twice = re.search(r'duplicate entry with key "(.*)"', message)
            place = f":{found[1]}" if found else self._repeated(f"{twice[1]}:") if twice else ""
            raise ToolkitError(f"{self._name}{place}: not YAML: {re.sub(r' at line [0-9]+ column [0-9]+', '', message)}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ToolkitError(f"{self._name}: not YAML that a preset can be: {error}") from None

    def error(self, path: str, message: str) -> ToolkitError:
        """Return an error for a path (``$.actions[3].next[0]``); the message begins with file and line."""
        line = self._line(path)
        return ToolkitError(f"{self._name}{f':{line}' if line else ''}: {path.removeprefix('$').removeprefix('.') or 'preset'}: {message}")

    def _line(self, path: str) -> int | None:
        """Return the line of a path, or of the nearest parent that can be found."""
        place = node = self._nodes
        for name, index in _STEP.findall(path):
            if isinstance(node, yaml.MappingNode) and name:
                found = next(((key, value) for key, value in node.value if key.value == name), None)
            elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
                found = (node.value[int(index)],) * 2
            else:
                found = None
            if found is None:
                break
            place, node = found
        return None if place is None else place.start_mark.line + 1

    @functools.cached_property
    def _nodes(self) -> Any:
        try:
            return yaml.compose(self._data[:_MOST_LOCATED] if len(self._data) > _MOST_LOCATED else self._data, _LOADER)
        except (yaml.YAMLError, RecursionError, UnicodeDecodeError):
            return None

    def _repeated(self, start: str) -> str:
        """Return the line of the second key of two, of lines that start with it; empty when that is not clear."""
        lines = [number for number, line in enumerate(self._data.splitlines(), 1) if line.strip().startswith(start.encode())]
        return f":{lines[-1]}" if len(lines) == 2 else ""


def _brackets(text: str) -> int:
    """Return the greatest number of open brackets. The parser's time grows with its square before it checks the number."""
    if text.count("[") + text.count("{") <= _MOST_BRACKETS:
        return 0
    opened = most = 0
    for found in _BRACKET.finditer(text):
        opened = opened + 1 if found[0] in "[{" else max(0, opened - 1)
        most = max(most, opened)
    return most


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_MOST_ENTRIES = 500_000

Problem = tuple[str, str]
"""A path (``$.actions[3].next[0]``), and what is wrong there."""

# Items that stand in for the entries while the shape of a chain is checked.
_STAND_INS: dict[str, Callable[[str, str], Item]] = {"tools": Tool, "groups": ToolGroup, "actions": Action}


def problems(preset: Preset) -> Iterator[Problem]:
    """Yield every problem, in the order of the preset."""
    kinds: dict[str, str] = {}
    yield from _taken(preset, kinds)
    yield from _tools(preset.tools)
    for index, group in enumerate(preset.groups):
        for at, member in enumerate(group.tools):
            yield from _dangling(f"$.groups[{index}].tools[{at}]", member, kinds, ("tools",))
        if not (group.tools or group.service or group.group):
            yield f"$.groups[{index}]", f"the group {group.id!r} has no tools: give it tools, a service or a group"
    for index, action in enumerate(preset.actions):
        for key, links, wanted in (("next", action.next, ("actions",)), ("call", action.call, ("tools", "groups"))):
            for at, link in enumerate(links):
                yield from _dangling(f"$.actions[{index}].{key}[{at}]", target_of(link), kinds, wanted)
    for index, chain in enumerate(preset.chains):
        path = f"$.chains[{index}]"
        wrong = list(_members(path, chain, kinds))
        yield from wrong or _shape(path, chain, kinds)
    yield from _operators(preset, kinds)


def target_of(link: str | Link) -> str:
    """Return the id that a link leads to."""
    return link if isinstance(link, str) else link.to


def _taken(preset: Preset, kinds: dict[str, str]) -> Iterator[Problem]:
    for kind in _STAND_INS:
        for index, entry in enumerate(getattr(preset, kind)):
            if entry.id in kinds:
                yield f"$.{kind}[{index}].id", f"the id {entry.id!r} is taken by another of the {kinds[entry.id]}"
            kinds[entry.id] = kind
    if len(kinds) > _MOST_ENTRIES:
        yield "$", f"a preset may have {_MOST_ENTRIES:,} entries, this one has {len(kinds):,}"


def _tools(entries: Iterable[ToolEntry]) -> Iterator[Problem]:
    for index, tool in enumerate(entries):
        if tool.function and tool.bus:
            yield f"$.tools[{index}].function", f"the tool {tool.id!r} is a function or a tool of the bus, not both"
        if tool.function and not all(tool.function.partition(":")[::2]):
            yield f"$.tools[{index}].function", f"{tool.function!r} is not module:function"


def _operators(preset: Preset, kinds: dict[str, str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, operator in enumerate(preset.operators):
        if operator.id in seen:
            yield f"$.operators[{index}].id", f"there are two operators {operator.id!r}"
        seen.add(operator.id)
        for at, start in enumerate(operator.actions):
            yield from _dangling(f"$.operators[{index}].actions[{at}]", start, kinds, ("actions",))


def _dangling(path: str, entry: str, kinds: dict[str, str], wanted: tuple[str, ...]) -> Iterator[Problem]:
    kind = kinds.get(entry)
    if kind is None:
        yield path, f"there is no entry {entry!r}; add it to {' or '.join(wanted)}"
    elif kind not in wanted:
        yield path, f"{entry!r} is one of the {kind}, where one of the {' or '.join(wanted)} belongs"


def _members(path: str, chain: Iterable[Any], kinds: dict[str, str]) -> Iterator[Problem]:
    for at, part in enumerate(chain):
        if isinstance(part, (list, tuple)):
            yield from _members(f"{path}[{at}]", part, kinds)
        elif isinstance(part, str):
            yield from _dangling(f"{path}[{at}]", part, kinds, ("actions", "tools", "groups"))
        else:
            yield f"{path}[{at}]", f"expected an id or a list of ids, got {type_name(part)}"


def _shape(path: str, chain: Iterable[Any], kinds: dict[str, str]) -> Iterator[Problem]:
    def stand_in(part: Any) -> Any:
        return tuple(map(stand_in, part)) if isinstance(part, (list, tuple)) else _STAND_INS[kinds[part]](part, part)

    try:
        add_chain(ToolkitService(), *map(stand_in, chain))
    except ToolkitError as error:
        yield path, str(error)


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
        with without_collection(len(data) > _LARGE):
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
    with without_collection(len(preset.tools) + len(preset.actions) > _MANY):
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


def shipped_presets() -> dict[str, Path]:
    """Return the files of the shipped presets by name."""
    package = find_installed("toolbus_workers")
    places = package.submodule_search_locations if package is not None else None
    return {path.stem: path for place in places or () for path in sorted(Path(place, "presets").glob("*.yaml"))}


def find_preset(place: str | Path) -> Path:
    """Return the file at a path, or the shipped preset of that name.

    Raises:
        ToolkitError: a name without a suffix is neither.
    """
    path = Path(place)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    shipped = shipped_presets()
    if path.name not in shipped:
        raise ToolkitError(f"there is no file {path.name!r} here, and no preset of that name (there are: {', '.join(shipped)})")
    return shipped[path.name]


def scores_of(toolkit: Toolkit) -> ScoreFile:
    """Return the scores of a graph's Next and Call edges, with the texts and other names of its vertices."""
    edges: list[Edge] = []
    texts: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for vertex, item in toolkit.items():
        texts[vertex] = text_of(item)
        names[vertex] = sorted(names_of(toolkit, vertex) - {vertex})
        if isinstance(item, Action):
            for target in toolkit.successors(vertex):
                kind = edge_kind(item, toolkit.item(target))
                if kind != "holds":
                    edges.append(Edge(kind, vertex, target, toolkit.get_score(vertex, target)))
    return ScoreFile(edges=edges, texts=texts, names={vertex: found for vertex, found in names.items() if found})


def names_of(toolkit: Toolkit, vertex: str) -> set[str]:
    """Return the names by which a log may know a vertex: ids, names, names on the bus, and those of a group's tools."""
    item = toolkit.item(vertex)
    if isinstance(item, Tool):
        return {item.bus_name or item.name}
    if isinstance(item, ToolGroup):
        return {vertex}.union(*({member} | names_of(toolkit, member) for member in toolkit.successors(vertex)))
    return {vertex} if item is None else {vertex, item.name}


def text_of(item: Action | Tool | ToolGroup) -> str:
    """Return the text by which a search for a sentence finds an action or a tool."""
    return f"{item.name}. {item.description}" if item.description else item.name


def with_scores(preset: Preset, edges: Iterable[Edge], revision: str) -> Preset:
    """Return the preset with other scores on its existing edges; ``revision`` names their source.

    An edge that stands only in a chain becomes a link of its action, since chains have no scores.
    """
    learned = {(edge.source, edge.target): edge.score for edge in edges}
    graph = graph_of(preset)
    actions = tuple(_scored(action, graph, learned) for action in preset.actions)
    return msgspec.structs.replace(preset, actions=actions, revision=revision)


def graph_of(preset: Preset) -> Toolkit:
    """Return the graph of a preset without importing its functions."""
    return toolkit_of(msgspec.structs.replace(preset, tools=tuple(msgspec.structs.replace(tool, function="") for tool in preset.tools)))


def _scored(action: ActionEntry, graph: Toolkit, learned: Mapping[tuple[str, str], float]) -> ActionEntry:
    links = {"next": action.next, "call": action.call}
    written = {target_of(link) for found in links.values() for link in found}
    for target in graph.successors(action.id):
        if target not in written and (action.id, target) in learned:
            links[edge_kind(graph.item(action.id), graph.item(target))] += (target,)

    def scored(link: str | Link) -> str | Link:
        score = learned.get((action.id, target_of(link)))
        return link if score is None else Link(target_of(link), score)

    return msgspec.structs.replace(action, next=tuple(map(scored, links["next"])), call=tuple(map(scored, links["call"])))
