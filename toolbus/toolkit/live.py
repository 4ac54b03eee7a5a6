"""The published graph as agents see it, and walks through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool as BusTool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError, ToolkitError
from toolbus.toolkit.graph import Action, Explorer, Item, Tool, ToolGroup, Toolkit, check_score, listed, recommend_subgraph
from toolbus.toolkit.learning.recorder import Episode, Place, Recorder
from toolbus.toolkit.learning.revisions import Revisions, check_graph
from toolbus.toolkit.learning.stores import MAX_SHOWN
from toolbus.toolkit.presets import (
    LiveGroup,
    OperatorEntry,
    Preset,
    graph_of,
    names_of,
    read_preset,
    scores_of,
    text_of,
    toolkit_of,
    with_scores,
)
from toolbus.toolkit.starting import Starter

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin

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
        ToolkitError: the threshold is not within 0 and 1, hops is no whole number from 0, or the actions are no list of texts.
    """
    wanted = listed("actions", actions, str)
    graph = published(tools.catalogue) if toolkit is None else toolkit
    starts = tuple(dict.fromkeys(found for each in wanted for found in _resolved(graph, each)))
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


_graphs: WeakKeyDictionary[Catalogue, tuple[int, Toolkit]] = WeakKeyDictionary()


def published(catalogue: Catalogue) -> Toolkit:
    """Return the graph of all published presets, merged in the order of their names: the first one defines what several have.

    It is made when it is asked for after a change. A preset that can't be read is left out with a warning.
    """
    version, graph = _graphs.get(catalogue, (-1, Toolkit()))
    if version != catalogue.presets_version:
        graph = merged(catalogue.presets)
        _graphs[catalogue] = (catalogue.presets_version, graph)
    return graph


def merged(documents: Mapping[str, bytes]) -> Toolkit:
    """One graph of several presets, see ``published``."""
    graph, revisions = Toolkit(), set[str]()
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


class Walk:
    """An agent's position in the graph, and the tools that it sees there.

    After a turn the agent is at the actions whose tools it called, and also sees what follows them within ``hops``. A call of a
    tool that belongs to no visible action does not move it.

    Attributes:
        at: ids or names of the current actions.

    Args:
        tools: ``bus.tools`` or a view of a part of it.
        starts: ids or names of the first actions.
        threshold: lowest score of an edge that is followed, from 0 to 1.
        hops: how many edges to next actions are followed; 1 shows the next actions.
        toolkit: a graph to use instead of the published one.
        recorder: records the calls that are made within ``recording()``, as agents with a walk do, to learn scores from them.
        explore: probability, from 0 to 1, that a tool below the threshold is shown all the same throughout an episode, so that its
            score can rise.

    Raises:
        ToolkitError: the threshold or ``explore`` is not within 0 and 1, hops is no whole number from 0, or starts is no list of texts.
    """

    def __init__(
        self,
        tools: ToolView,
        starts: Iterable[str],
        *,
        threshold: float = 0.5,
        hops: int = 1,
        toolkit: Toolkit | None = None,
        recorder: Recorder | None = None,
        explore: float = 0.0,
    ) -> None:
        check_score(explore, "explore")
        self._tools = tools
        self._toolkit = toolkit
        self._recorder = recorder
        self._explore = explore
        self._explorer: Explorer | None = None
        self._viewed = partial(for_actions, tools, threshold=threshold, hops=hops, toolkit=toolkit, tell_missing=True)
        self.at = tuple(listed("starts", starts, str))
        self._view = self._viewed(self.at)

    @property
    def view(self) -> ActionView:
        """The tools and actions for the current position, by the graph and the tools of the moment."""
        self._view = self._viewed(self.at, explorer=self._explorer)
        return self._view

    def after(self, called: Iterable[str]) -> None:
        """Move the agent after it called these tools of the bus.

        Raises:
            ToolkitError: they are no list of names.
        """
        moved = {action: None for name in listed("called", called, str) for action, _ in self._edges(name)}
        if moved:
            self.at = tuple(action.id for action in self._view.actions if action.id in moved)

    @contextmanager
    def recording(self, question: str = "") -> Iterator[None]:
        """Record the calls that start within this ``with`` as one episode; ``Agent`` does so for each question.

        The tools below the threshold that are shown in it are chosen here, also without a recorder.

        Raises:
            ConfigurationError: the recorder is not running.
        """
        episode = Episode(new_id(), question) if self._recorder is None else self._recorder.episode(question)
        if self._recorder is not None and not self._recorder.running:
            raise ConfigurationError("the walk's recorder is not running: use `with recorder:` around the agent")
        self._explorer = Explorer(self._explore, episode.id) if self._explore else None
        with nullcontext() if self._recorder is None else episode.located(self._place):
            yield

    def _place(self, tool: str) -> Place | None:
        """Return the place of a call of a tool: the current action that calls it, or else the nearest one."""
        edges = self._edges(tool)
        if not edges:
            return None
        view = self._view
        action, target = min(edges, key=lambda edge: edge[0] not in view.starts)
        shown: dict[str, float] = {}
        following: dict[str, float] = {}
        for vertex in view.toolkit.successors(action):
            if isinstance(view.toolkit.item(vertex), Action):
                following[vertex] = 1.0
            elif vertex == target or self._is_shown(vertex):
                shown[vertex] = self._explore if (action, vertex) in view.explored else 1.0
        graph = published(self._tools.catalogue) if self._toolkit is None else self._toolkit
        return Place(action, target, _first(shown, target), _first(following, ""), graph.revision)

    def _is_shown(self, vertex: str) -> bool:
        """Return whether the model is shown a tool, or any tool of a group."""
        item = self._view.toolkit.item(vertex)
        if isinstance(item, LiveGroup) and any(item.holds(tool) for tool in self._view.values()):
            return True
        members = [vertex] if isinstance(item, Tool) else self._view.toolkit.successors(vertex)
        found = [self._view.toolkit.item(member) for member in members]
        return any(isinstance(tool, Tool) and tool.bus_name in self._view for tool in found)

    def _edges(self, tool: str) -> list[tuple[str, str]]:
        """Return the visible edges, from an action to a tool or group, by which a tool of the bus can be called, the nearest first."""
        part = self._view.toolkit
        edges: list[tuple[str, str]] = []
        for action in self._view.actions:
            found = [target for target in part.successors(action.id) if self._leads_to(target, tool)]
            edges += [(action.id, target) for target in sorted(found, key=lambda target: isinstance(part.item(target), ToolGroup))]
        return edges

    def _leads_to(self, vertex: str, tool: str) -> bool:
        """Return whether a vertex is a tool of the bus, or a group that has it."""
        part, live = self._view.toolkit, self._view.get(tool)
        item = part.item(vertex)
        if isinstance(item, LiveGroup) and live is not None and item.holds(live):
            return True
        members = map(part.item, part.successors(vertex)) if isinstance(item, ToolGroup) else [item]
        return any(isinstance(member, Tool) and member.bus_name == tool for member in members)


def _first(shown: dict[str, float], needed: str) -> dict[str, float]:
    """Return as many entries as a record may have, with the needed one."""
    kept = dict(islice(shown.items(), MAX_SHOWN - 1))
    return {**kept, needed: shown[needed]} if needed in shown else kept


async def publish(admin: Admin, preset: Preset, owner: str) -> None:
    """Publish a preset; every agent of the namespace sees it at once.

    Raises:
        ToolkitError: it is too large.
        ToolbusError: the name is another owner's, or the server can't be reached.
    """
    document = msgspec.json.encode(preset)
    if len(document) > MAX_PUBLISHED:
        raise ToolkitError(f"the preset has {len(document):,} bytes, and {MAX_PUBLISHED:,} can be published: publish it in parts")
    await admin.put(f"toolkit/{preset.name}", document, owner)


async def is_published(admin: Admin, preset: Preset) -> bool:
    """Return whether exactly this preset is published."""
    return await admin.item(f"toolkit/{preset.name}") == msgspec.json.encode(preset)


async def publish_current(admin: Admin, revisions: Revisions, owner: str) -> list[str]:
    """Publish the current revision in the place of other revisions of the same folder; return the names of the presets.

    Raises:
        ConfigurationError: the current revision is of another graph.
        ToolbusError: a preset is another owner's, or the server can't be reached.
    """
    current, known = revisions.current(), set(revisions.ids())
    changed: list[str] = []
    for key, document in (await admin.items("toolkit/")).items():
        try:
            preset = read_preset(document, key)
        except ToolkitError:
            continue  # the commands that list presets tell why
        if current is not None and preset.revision in known:
            check_graph(current, scores_of(graph_of(preset)).scores, preset.name)
            await publish(admin, with_scores(preset, current.edges, current.id), owner)
            changed.append(preset.name)
    return sorted(changed)


async def live_names(admin: Admin, preset: Preset) -> dict[str, list[str]]:
    """Return the names of the tools that a preset's groups have on the bus at the moment, by group.

    Raises:
        ToolbusError: the server can't be reached.
    """
    services, _ = await admin.snapshot()
    tools = [tool for record in services.values() if isinstance(record, ServiceRecord) for tool in record.publication.tools]
    return {
        group.id: sorted(tool.name for tool in tools if (group.service and tool.service == group.service) or group.group in tool.groups)
        for group in preset.groups
        if group.service or group.group
    }


def all_names(preset: Preset, live: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Return the names by which a log may know a preset's vertices, without their ids; ``live`` has those of groups on the bus."""
    graph = graph_of(preset)
    names = {vertex: names_of(graph, vertex).union(live.get(vertex, ())) - {vertex} for vertex, _ in graph.items()}
    return {vertex: found for vertex, found in names.items() if found or isinstance(graph.item(vertex), ToolGroup)}
