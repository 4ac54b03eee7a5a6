"""The published graph as agents see it, and the tools that it recommends and that are there now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakKeyDictionary

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool as BusTool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup
from toolbus.toolkit.presets import LiveGroup, read_preset, text_of, toolkit_of
from toolbus.toolkit.recommend import Explorer, recommend_subgraph
from toolbus.toolkit.starting import OperatorEntry, Starter

MAX_PUBLISHED = 4 * 1024 * 1024
"""Bytes of a preset that can be published: every agent reads it, and the registry's log keeps it."""

_SHOWN = 2000
_MOST_STARTS = 3
# Most characters of a revision in a record of a call.
_MOST_REVISION = 128


class Reach(msgspec.Struct, frozen=True):
    """The tools of the bus that a part of a graph leads to: by name, or by their service or registry group."""

    names: frozenset[str]
    services: frozenset[str]
    groups: frozenset[str]

    def accepts(self, tool: BusTool) -> bool:
        """Return whether a tool is among them."""
        return tool.name in self.names or tool.service in self.services or not self.groups.isdisjoint(tool.groups)


class ActionView(ToolView):
    """The live tools that make sense at some actions: a ``ToolView`` like any other, for definitions and executors.

    Attributes:
        toolkit: the recommended part of the graph.
        starts: ids of the actions at hand.
        actions: these and the recommended ones, in the order in which they were met.
        missing: recommended tools of the bus that were not there when the view was made, by id.
        explored: edges below the threshold that were chosen to be shown.
        local: recommended functions of this process, by id; an executor of the bus does not call them.
        tells_missing: whether ``prompt()`` names the missing tools.
    """

    toolkit: Toolkit
    starts: tuple[str, ...]
    actions: list[Action]
    missing: dict[str, Tool]
    explored: frozenset[tuple[str, str]]
    local: dict[str, Tool]
    tells_missing: bool

    def prompt(self) -> str:
        """Return the recommended actions for a model: each with its tools and the actions that may follow; empty without any."""
        if not self.actions:
            return ""
        lines = ["Actions that make sense now:"]
        for action in self.actions:
            here = " (at hand)" if action.id in self.starts else ""
            lines.append(f"- {_named(action)}{here}: {action.description}" if action.description else f"- {_named(action)}{here}")
            called, following = self._around(action)
            if called:
                lines.append(f"  tools: {', '.join(called)}")
            if following:
                lines.append(f"  next: {', '.join(following)}")
        return "\n".join(line[:_SHOWN] for line in lines)

    def vertices(self, name: str) -> list[str]:
        """Return the ids of the vertices by which a tool of the bus is recommended: tools, or else groups that hold it."""
        tool = self.get(name)
        items = [*self.toolkit.items()]
        found = [vertex for vertex, item in items if isinstance(item, Tool) and item.bus_name == name]
        if found or tool is None:
            return found
        return [vertex for vertex, item in items if isinstance(item, LiveGroup) and item.holds(tool)]

    def score(self, vertex: str) -> float | None:
        """Return the best score of the edges to a vertex in the recommended part; None for one that no edge leads to."""
        if not self.toolkit.has_vertex(vertex):
            return None
        return max((self.toolkit.get_score(before, vertex) for before in self.toolkit.predecessors(vertex)), default=None)

    def _around(self, action: Action) -> tuple[list[str], list[str]]:
        called: list[str] = []
        following: list[str] = []
        for vertex in self.toolkit.successors(action.id):
            item = self.toolkit.item(vertex)
            if isinstance(item, Action):
                following.append(_named(item))
            elif isinstance(item, LiveGroup):
                called += [tool.name for tool in self.values() if item.holds(tool)]
            if isinstance(item, ToolGroup):
                called += self._told(tool for tool in map(self.toolkit.item, self.toolkit.successors(vertex)) if isinstance(tool, Tool))
            elif isinstance(item, Tool):
                called += self._told([item])
        return list(dict.fromkeys(called)), following

    def _told(self, tools: Iterable[Tool]) -> list[str]:
        """Names of the tools that the model may call, and, where wanted, of those it may not call now."""
        told: list[str] = []
        for tool in tools:
            if tool.bus_name and _is_there(self, tool.bus_name):
                told.append(tool.bus_name)
            elif tool.bus_name and self.tells_missing:
                told.append(f"{tool.bus_name} (not available now)")
        return told


def for_actions(
    tools: ToolView,
    actions: Iterable[str],
    *,
    threshold: float = 0.5,
    hops: int = 0,
    toolkit: Toolkit | None = None,
    tell_missing: bool = False,
    explorer: Explorer | None = None,
) -> ActionView:
    """Return the tools that make sense when one of these actions is at hand, by the toolkit graph that is published in the namespace.

    Args:
        tools: ``bus.tools``, or a part of it.
        actions: ids or names of actions; those that the graph does not have are ignored.
        threshold: the lowest score of an edge that is followed, from 0 to 1.
        hops: how many edges to next actions are followed.
        toolkit: another graph in place of the published one.
        explorer: chooses tools below the threshold that are shown all the same.
        tell_missing: name in ``prompt()`` the recommended tools that are not there now; they are left out otherwise.

    Raises:
        ToolkitError: the threshold is not within 0 and 1, or hops is no whole number from 0.
    """
    graph = published(tools.catalogue) if toolkit is None else toolkit
    starts = tuple(dict.fromkeys(found for each in actions for found in _resolved(graph, each)))
    part = recommend_subgraph(graph, starts, threshold, hops)
    explored = frozenset() if explorer is None else explorer.extend(part, graph)
    items: list[Item] = [item for _, item in part.items()]
    found = [item for item in items if isinstance(item, Tool)]
    groups = [item for item in items if isinstance(item, LiveGroup)]
    reach = Reach(
        frozenset(tool.bus_name for tool in found if tool.bus_name),
        frozenset(group.service for group in groups if group.service),
        frozenset(group.group for group in groups if group.group),
    )
    view = ActionView(*tools.within(reach))
    view.toolkit, view.starts, view.tells_missing, view.explored = part, starts, tell_missing, explored
    view.actions = [item.copy() for item in items if isinstance(item, Action)]
    view.local = {tool.id: tool for tool in found if tool.function is not None}
    view.missing = {tool.id: tool for tool in found if tool.bus_name and not _is_there(view, tool.bus_name)}
    return view


class Merged(Toolkit):
    """The graph of all published presets.

    Attributes:
        revision: revisions of the learned scores in it, sorted and separated by commas; empty without any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.revision = ""


_graphs: WeakKeyDictionary[Catalogue, tuple[int, Merged]] = WeakKeyDictionary()


def published(catalogue: Catalogue) -> Merged:
    """Return the graph of all published presets, merged in the order of their names: the first one defines what several have.

    It is made when it is asked for after a change. A preset that can't be read is left out with a warning.
    """
    version, graph = _graphs.get(catalogue, (-1, Merged()))
    if version != catalogue.presets_version:
        graph = merged(catalogue.presets)
        _graphs[catalogue] = (catalogue.presets_version, graph)
    return graph


def merged(documents: Mapping[str, bytes]) -> Merged:
    """One graph of several presets, see ``published``."""
    graph, revisions = Merged(), set[str]()
    for name, found in _read(documents):
        if isinstance(found, ToolkitError):
            telemetry.log.warning("toolkit.left_out", toolkit=name, error=str(found))
        else:
            graph.update(found[0])
            revisions.add(found[1])
    graph.revision = ",".join(sorted(revisions - {""}))[:_MOST_REVISION]
    return graph


def unreadable(documents: Mapping[str, bytes]) -> dict[str, str]:
    """Return the published presets that agents leave out, each with the reason."""
    return {name: str(found) for name, found in _read(documents) if isinstance(found, ToolkitError)}


def _read(documents: Mapping[str, bytes]) -> Iterator[tuple[str, tuple[Toolkit, str] | ToolkitError]]:
    """Yield each preset's graph and revision, or the reason why it can't be read."""
    for name, document in sorted(documents.items()):
        try:
            preset = read_preset(document, f"toolkit/{name}")
            yield name, (toolkit_of(preset, functions=False), preset.revision)
        except ToolkitError as error:
            yield name, error


def operator_of(catalogue: Catalogue, name: str) -> OperatorEntry:
    """Return an operator of the published presets, in the order of their names.

    Raises:
        ToolkitError: none of them has it.
    """
    known: list[str] = []
    for preset, document in sorted(catalogue.presets.items()):
        try:
            operators = read_preset(document, f"toolkit/{preset}").operators
        except ToolkitError:
            continue  # told when the graph was made
        for operator in operators:
            if operator.id == name:
                return operator
            known.append(operator.id)
    raise ToolkitError(f"no published preset has the operator {name!r} (there are: {', '.join(known) or 'none'})")


def starts_of(graph: Toolkit, wanted: Iterable[str]) -> list[str]:
    """Ids of the actions that are named by id or name; for anything else, those of the three actions that fit the words best."""
    words: list[str] = []
    starts: list[str] = []
    for each in wanted:
        found = _resolved(graph, each)
        starts += found
        if not found:
            words.append(each)
    if words:
        texts = {vertex: text_of(item) for vertex, item in graph.items() if isinstance(item, Action)}
        starts += [start.action for start in Starter(texts).rank(" ".join(words), _MOST_STARTS)]
    return list(dict.fromkeys(starts))


def _resolved(graph: Toolkit, wanted: str) -> list[str]:
    """Return the action of an id, or all actions of a name."""
    if isinstance(graph.item(wanted), Action):
        return [wanted]
    name = wanted.strip().casefold()
    return [vertex for vertex, item in graph.items() if isinstance(item, Action) and item.name.casefold() == name]


def _is_there(tools: ToolView, name: str) -> bool:
    tool = tools.get(name)
    return tool is not None and tool.available


def _named(action: Action) -> str:
    return action.name if action.name == action.id else f"{action.name} [{action.id}]"
