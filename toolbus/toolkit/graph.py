"""The graph: actions, tools and groups of tools at its vertices, edges with scores, and what they recommend."""

from __future__ import annotations

import copy
import math
import random
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeVar

from toolbus.bus.schema.derivation import Derived, derive, read_signature
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import DescriptorError, ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.bus.worker.provide import Services, injected

T = TypeVar("T")


class Tool:
    """Something that an action can call: a function of this process, or a tool of the bus.

    Two tools are equal when they are the same object, or share class, id, name, description, parameters and target.

    Args:
        id: id of its vertex; unique in a graph.
        name: the name for the model; need not be unique.
        description: the text for the model; the function's docstring when left out.
        parameters: JSON Schema of the arguments; when left out, derived from the function, or any object.
        function: a coroutine function or a plain one; None for a tool of the bus.
        bus_name: the bus tool's name; ``name`` when left out, and empty when there is a function.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(
        self,
        id: str,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        function: Callable[..., Any] | None = None,
        bus_name: str = "",
    ) -> None:
        self._id = id
        self._name = name
        self._description = description
        self._parameters = parameters
        self._function = function
        self._bus_name = bus_name or ("" if function is not None else name)
        self._derived: Derived | None = None
        self._services: list[type] = []
        _check(self, _TOOL, id=(id, str), name=(name, str), description=(description or "", str), bus_name=(bus_name, str))
        _check(self, _TOOL, parameters=({} if parameters is None else parameters, Mapping), function=(function or _check, Callable))

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, id: str | None = None, name: str | None = None) -> Self:
        """Make a tool of a function; by default its name is the function's, and its id is its name."""
        named = name or getattr(function, "__name__", None) or type_name(function)
        return cls(id or named, named, function=function)

    @property
    def id(self) -> str:
        """The id of its vertex."""
        return self._id

    @property
    def name(self) -> str:
        """The name for the model."""
        return self._name

    @property
    def description(self) -> str:
        """The text for the model."""
        if self._description or self._function is None:
            return self._description
        try:
            return read_signature(self._function, injected=(), skip_self=False).description
        except DescriptorError:
            return ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments; parameters that services fill in are no part of it (``toolbus.provide``).

        Raises:
            DescriptorError: the function can't be called with named arguments.
        """
        if self._parameters is None:
            return {"type": "object"} if self._function is None else self.derived.parameters
        return self._schema(self._parameters, Services())

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function that runs in this process; None for a tool of the bus."""
        return self._function

    @property
    def bus_name(self) -> str:
        """The bus tool's name; empty when a function of this process runs."""
        return self._bus_name

    @property
    def derived(self) -> Derived:
        """The schema and binder of the function, derived on first use, and again when other services are provided.

        Raises:
            DescriptorError: there is no function, or it can't be called with named arguments.
        """
        services = Services()
        known = [*services]
        if self._derived is None or known != self._services:
            function: Any = self._function
            schema = None if self._parameters is None else self._schema(self._parameters, services)
            self._derived = derive(function, parameters=schema, injected=injected(schema, function, services))
            self._services = known
        return self._derived

    def _schema(self, given: Mapping[str, Any], services: Services) -> dict[str, Any]:
        """Return the given schema without the parameters that services fill in."""
        try:
            found = {} if self._function is None else read_signature(self._function, injected=services, skip_self=False).injected
        except DescriptorError:  # told when the function is derived
            found = {}
        return _without(given, [name for name, type_ in found.items() if services.provides(type_)])

    def definition(self) -> dict[str, Any]:
        """Return the bare function definition: ``{name, description, parameters}``."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def copy(self) -> Self:
        """Return a copy for callers of a graph; subclasses may override how it is made."""
        return copy.copy(self)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tool for a worker of its module; none when it is a tool of the bus."""
        return [] if self._function is None else [ToolObject(self.name, self._description, self._parameters, self._function, self)]

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and isinstance(other, Tool) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"{type_name(self)}({self._id!r}, {self._name!r})"

    def _identity(self) -> tuple[object, ...]:
        return (self._id, self._name, self._description, self._parameters, self._function, self._bus_name)


class Action:
    """A step of a task: what an agent may be doing, what it may do next, and what it may call.

    Attributes:
        id: id of its vertex; unique in a graph.
        name: name for people; need not be unique.
        description: text for the model.
        next_action_ids: ids of actions that may follow; ``ToolkitService.add_action`` turns them into edges.
        tools: tools that the action may call; ``ToolkitService.add_action`` turns them into edges, too.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(
        self,
        id: str,
        name: str,
        description: str = "",
        next_action_ids: Iterable[str] | None = None,
        tools: Iterable[Tool] | None = None,
    ) -> None:
        _check(self, _ACTION, id=(id, str), name=(name, str), description=(description or "", str))
        self.id = id
        self.name = name
        self.description = description
        self.next_action_ids = _members(self, _ACTION, "next_action_ids", next_action_ids, str)
        self.tools = _members(self, _ACTION, "tools", tools, Tool)

    def copy(self) -> Self:
        """Return a copy for callers of a graph, with its own lists; subclasses may override how it is made."""
        made = copy.copy(self)
        made.next_action_ids = list(self.next_action_ids)
        made.tools = list(self.tools)
        return made

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type_name(self)}({self.id!r}, {self.name!r})"


class ToolGroup:
    """Tools that come and go together: all tools of one service, registry group, module or MCP server.

    Args:
        id: id of its vertex; unique in a graph.
        name: for people and models.
        description: for people and models.
        tools: all of them.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(self, id: str, name: str, description: str = "", tools: Iterable[Tool] = ()) -> None:
        _check(self, _GROUP, id=(id, str), name=(name, str), description=(description or "", str))
        self._id = id
        self._name = name
        self._description = description
        self._tools = _members(self, _GROUP, "tools", tools, Tool)

    @property
    def id(self) -> str:
        """The id of its vertex."""
        return self._id

    @property
    def name(self) -> str:
        """The name for people and models."""
        return self._name

    @property
    def description(self) -> str:
        """The description for people and models."""
        return self._description

    @property
    def tools(self) -> list[Tool]:
        """All tools of the group, in a new list."""
        return list(self._tools)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return its tools for a worker of its module, without those of the bus."""
        return [found for tool in self._tools for found in tool.__toolbus_tools__()]

    def __repr__(self) -> str:
        return f"{type_name(self)}({self._id!r}, {self._name!r}, {len(self._tools)} tools)"


def _without(schema: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a schema without some of its properties."""
    made, properties = dict(schema), schema.get("properties", {})
    if not any(name in properties for name in names):
        return made
    made["properties"] = {name: each for name, each in properties.items() if name not in names}
    if "required" in made:
        made["required"] = [name for name in made["required"] if name not in names]
    return made


Item = Action | Tool | ToolGroup
"""The item of a vertex."""


_TOOL = "Tool(id, name, description, parameters, function, bus_name)"
_ACTION = "Action(id, name, description, next_action_ids, tools)"
_GROUP = "ToolGroup(id, name, description, tools)"


def _check(item: object, form: str, **given: tuple[object, Any]) -> None:
    """Refuse arguments that are not of their kinds.

    Raises:
        ToolkitError: the message names the argument, and the order of all of them.
    """
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            whose = "an Action" if isinstance(item, Action) else f"a {type_name(item)}"
            raise ToolkitError(f"{name}={reprlib.repr(value)} of {whose} has the type {type_name(value)}: the order is {form}")


def _members(item: object, form: str, name: str, given: Iterable[T] | None, kind: type[T]) -> list[T]:
    """Return what a list argument holds.

    Raises:
        ToolkitError: it is no list, or it holds something of another kind.
    """
    if isinstance(given, str):
        _check(item, form, **{name: (given, list)})
    _check(item, form, **{name: (given or (), Iterable)})
    found = list(given or ())
    for index, each in enumerate(found):
        _check(item, form, **{f"{name}[{index}]": (each, kind)})
    return found


def expect(what: str, value: object, *kinds: type) -> None:
    """Refuse an argument of another kind.

    Raises:
        ToolkitError: the message begins with ``what``.
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ToolkitError(f"{what} has the type {type_name(value)}, not {wanted}: {reprlib.repr(value)}")


def listed(what: str, given: Iterable[T], *kinds: type) -> list[T]:
    """Return what a list argument holds; a text is no list of its characters.

    Raises:
        ToolkitError: it is no list, or it holds something of another kind.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ToolkitError(f"{what} has the type {type_name(given)}, not list: {reprlib.repr(given)}")
    found = list(given)
    for index, each in enumerate(found):
        expect(f"{what}[{index}]", each, *kinds)
    return found


_KINDS = ((Action, "action"), (Tool, "tool"), (ToolGroup, "group"))


def kind_of(item: object) -> str:
    """Return ``action``, ``tool`` or ``group``; empty for anything else."""
    return next((kind for cls, kind in _KINDS if isinstance(item, cls)), "")


def edge_kind(source: object, target: object) -> Literal["next", "call", "holds"]:
    """Return the kind of the edge between two items: a group holds its tools, and an action is followed by actions and calls the rest."""
    if isinstance(source, ToolGroup):
        return "holds"
    return "next" if isinstance(target, Action) else "call"


def a(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "action" else f"a {kind}"


try:
    import networkx as nx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the toolkit needs networkx: pip install 'toolbus[toolkit]' ({error})", name="networkx") from None


Edge = tuple[str, str]

UNSET = 1.0
"""The score of an edge without an explicit one."""

# The kinds of vertices that an edge may lead to, by the kind it starts from.
_LEADS_TO = {"action": ("action", "tool", "group"), "group": ("tool",), "tool": ()}


class Toolkit:
    """A graph of actions, the actions that may follow them, and the tools they may call.

    ::

        Action ──Next──▶ Action        Action ──Call──▶ Tool
        Action ──Call──▶ ToolGroup     ToolGroup ─────▶ Tool

    Vertices are identified by their ids, so names may be equal. A vertex's item is the attribute ``data`` of the networkx node,
    and an edge's score the attribute ``score`` of the networkx edge, so both disappear with their node or edge, however it is
    removed. Not safe for several threads at once.

    Attributes:
        revision: in the graph of all published presets, the revisions of their learned scores, sorted and separated by commas.
    """

    def __init__(self) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self.revision = ""

    # -- reading ----------------------------------------------------------------------------------

    def get_graph(self) -> nx.DiGraph[str]:
        """Return the networkx graph itself, not a copy."""
        return self._graph

    def vertices(self) -> list[str]:
        """Return the ids of all vertices, in the order they were added."""
        return list(self._graph)

    def edges(self) -> list[Edge]:
        """Return all edges, in the order of their source vertices, then of being added."""
        return list(self._graph.edges)

    def vertices_data(self) -> list[tuple[str, dict[str, Item]]]:
        """Return all vertices with ``{"data": …}``; actions and tools are copies, groups are not."""
        return [(vertex, {"data": item if isinstance(item, ToolGroup) else item.copy()}) for vertex, item in self.items()]

    def items(self) -> Iterator[tuple[str, Item]]:
        """Return the id and item of every vertex that has one; items are not copied."""
        return ((vertex, item) for vertex, item in self._graph.nodes.data("data") if item is not None)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools that run in this process, for a worker of the graph's module."""
        return [found for _, item in self.items() if isinstance(item, Tool) for found in item.__toolbus_tools__()]

    def predecessors(self, id: str) -> list[str]:
        """Return the vertices with an edge to this one.

        Raises:
            ToolkitError: there is no such vertex.
        """
        self._present(id)
        return list(self._graph.predecessors(id))

    def successors(self, id: str) -> list[str]:
        """Return the vertices that this one has an edge to.

        Raises:
            ToolkitError: there is no such vertex.
        """
        self._present(id)
        return list(self._graph.successors(id))

    def has_vertex(self, id: str) -> bool:
        """Return whether there is such a vertex."""
        return id in self._graph

    def has_edge(self, u: str, v: str) -> bool:
        """Return whether there is an edge from ``u`` to ``v``."""
        return u in self._graph and v in self._graph and v in self._graph.adj[u]

    def get_action(self, id: str) -> Action | None:
        """Return a copy of the action at a vertex, or None when there is no action."""
        item = self.item(id)
        return item.copy() if isinstance(item, Action) else None

    def get_tool(self, id: str) -> Tool | None:
        """Return a copy of the tool at a vertex, or None when there is no tool."""
        item = self.item(id)
        return item.copy() if isinstance(item, Tool) else None

    def get_tool_group(self, id: str) -> ToolGroup | None:
        """Return the group at a vertex itself, or None when there is no group."""
        item = self.item(id)
        return item if isinstance(item, ToolGroup) else None

    def item(self, id: str) -> Item | None:
        """Return the item at a vertex, not a copy; None when there is no such vertex."""
        about = self._graph._node.get(id)
        found: Item | None = None if about is None else about.get("data")
        return found

    def get_score(self, u: str, v: str) -> float:
        """Return an edge's score; 1.0 when it has no explicit one or there is no such edge."""
        found: float = self._graph.edges[u, v].get("score", UNSET) if self._graph.has_edge(u, v) else UNSET
        return found

    # -- writing ----------------------------------------------------------------------------------

    def add_vertex(self, id: str, *, data: Item) -> None:
        """Add a vertex, or replace the item of an existing one.

        Raises:
            ToolkitError: the id is no text, or the item is no action, tool or group, or of another kind than the existing one.
        """
        expect("the id of a vertex", id, str)
        kind, there = kind_of(data), kind_of(self.item(id))
        if not kind:
            raise ToolkitError(f"vertex {id!r} can't hold a {type_name(data)}: give it an Action, a Tool or a ToolGroup")
        if there and there != kind:
            raise ToolkitError(f"vertex {id!r} is {a(there)} already; give the {kind} another id, or remove the {there} first")
        self._graph.add_node(id, data=data)

    def add_edge(self, u: str, v: str, score: float | None = None) -> None:
        """Add an edge; an existing edge keeps its score when ``score`` is None.

        Raises:
            ToolkitError: a vertex is missing, edges can't lead that way, or the score is not within 0 and 1.
        """
        source, target = (kind_of(self.item(self._present(vertex))) for vertex in (u, v))
        if target not in _LEADS_TO[source]:
            able = " or ".join(a(kind) for kind in _LEADS_TO[source]) or "nothing"
            why = f"{a(source)} leads to {able}"
            raise ToolkitError(f"no edge can lead from the {source} {u!r} to the {target} {v!r}: {why}")
        self._link(u, v, score)

    def _link(self, u: str, v: str, score: float | None) -> None:
        if score is not None:
            check_score(score, f"the score of the edge {u!r} → {v!r}")
        self._graph.add_edge(u, v)
        if score is not None:
            self.set_score(u, v, score)

    def set_score(self, u: str, v: str, score: float) -> None:
        """Set the score of an edge, from 0 to 1.

        Raises:
            ToolkitError: there is no such edge, or the score is not within 0 and 1.
        """
        check_score(score, f"the score of the edge {u!r} → {v!r}")
        if not self.has_edge(u, v):
            raise ToolkitError(f"there is no edge {u!r} → {v!r} to score: add it first")
        self._graph.edges[u, v]["score"] = float(score)

    def remove_edge(self, u: str, v: str) -> None:
        """Remove an edge with its score; all vertices stay.

        Raises:
            ToolkitError: there is no such edge.
        """
        if not self.has_edge(u, v):
            raise ToolkitError(f"there is no edge {u!r} → {v!r} to remove")
        self._graph.remove_edge(u, v)

    def remove_vertex(self, id: str) -> None:
        """Remove a vertex, its edges, and what is useless without it; do nothing when there is no such vertex.

        Removing an action removes the tools that nothing else leads to, removing a group removes its tools, and removing a group's
        last tool removes the group. A group stays when the last action that called it is removed, because its tools still exist.

        Raises:
            ToolkitError: the id is no text.
        """
        expect("the id of a vertex", id, str)
        waiting = [id]
        while waiting:
            gone = waiting.pop()
            if gone in self._graph:
                waiting += self._falls_with(gone)
                self._graph.remove_node(gone)

    def update(self, other: Toolkit) -> None:
        """Add another graph's vertices and edges; vertices and edges of this graph keep their items and scores.

        Raises:
            ToolkitError: the other one is no graph, or a vertex has different kinds in the two graphs; nothing was changed.
        """
        expect("the other graph", other, Toolkit)
        for vertex, item in other.items():
            here = kind_of(self.item(vertex))
            if here and here != kind_of(item):
                raise ToolkitError(f"vertex {vertex!r} is {a(here)} here and {a(kind_of(item))} in the other graph; rename one of them")
        mine = self._graph
        mine.add_nodes_from([(vertex, {"data": item}) for vertex, item in other.items() if self.item(vertex) is None])
        mine.add_edges_from([(u, v, dict(about)) for u, v, about in other.get_graph().edges(data=True) if not mine.has_edge(u, v)])

    def subgraph(self, ids: Iterable[str]) -> Self:
        """Return a new graph of these vertices and the edges between them; unknown ids are ignored.

        Raises:
            ToolkitError: they are no list of ids.
        """
        kept, edges = dict.fromkeys(vertex for vertex in listed("ids", ids, str) if vertex in self._graph), self.tables()[1]
        return self.part(kept, ((u, v, about) for u in kept for v, about in edges[u].items()))

    def part(self, ids: Collection[str], edges: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Self:
        """Return a new graph of these vertices, and of the given edges that lie between them."""
        made = type(self)()
        nodes = self.tables()[0]
        made._graph.add_nodes_from((vertex, nodes[vertex]) for vertex in ids)
        made._graph.add_edges_from(edge for edge in edges if edge[1] in ids)
        return made

    def tables(self) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Mapping[str, Mapping[str, Any]]]]:
        """Return networkx's own tables, read-only: attributes by vertex, and attributes of edges by source and target.

        networkx's views create an object for each access, which would be most of the time of a recommendation.
        """
        return self._graph._node, self._graph._adj

    # -- inside -----------------------------------------------------------------------------------

    def _present(self, id: str) -> str:
        if id not in self._graph:
            raise ToolkitError(f"there is no vertex {id!r} in the toolkit graph")
        return id

    def _falls_with(self, id: str) -> list[str]:
        """Return the vertices that must be removed together with this one."""
        item = self.item(id)
        if isinstance(item, Action):
            return [each for each in self._graph.successors(id) if isinstance(self.item(each), Tool) and self._graph.in_degree(each) == 1]
        if isinstance(item, ToolGroup):
            return list(self._graph.successors(id))
        holders = self._graph.predecessors(id)
        return [each for each in holders if isinstance(self.item(each), ToolGroup) and self._graph.out_degree(each) == 1]


def check_score(score: float, what: str) -> None:
    """Check that a score or threshold is a number from 0 to 1.

    Raises:
        ToolkitError: it is not; the message begins with ``what``.
    """
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score) or not 0.0 <= score <= 1.0:
        raise ToolkitError(f"{what} is {score!r}, which is not a number from 0 to 1")


Graph = TypeVar("Graph", bound=Toolkit)


def recommend_subgraph(toolkit: Graph, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0) -> Graph:
    """Return the part of a graph that is useful when one of these actions is current.

    It holds these actions, those that at most ``hops`` Next edges lead to, the tools and groups that all of them call, and the
    tools of those groups. Only edges whose score is at least ``threshold`` are followed and kept. Vertices are in the order of the
    walk, which reads nothing else of the graph.

    Args:
        actions: actions or their ids; those that are not in the graph are ignored.

    Raises:
        ToolkitError: the threshold is not within 0 and 1, hops is not a whole number from 0, or an argument is of another kind.
    """
    expect("toolkit", toolkit, Toolkit)
    starts = listed("actions", actions, Action, str)
    check_score(threshold, "the threshold")
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
        raise ToolkitError(f"hops is {hops!r}, which is not a whole number from 0")
    nodes, edges = toolkit.tables()
    met: dict[str, None] = {}
    passed: list[tuple[str, str, Mapping[str, Any]]] = []

    def beyond(ids: Iterable[str], called: dict[str, None]) -> dict[str, None]:
        """Return the unvisited actions that follow these vertices, whose edges are read once; add what they call to ``called``."""
        following: dict[str, None] = {}
        for vertex in ids:
            for target, about in edges[vertex].items():
                if about.get("score", UNSET) >= threshold:
                    passed.append((vertex, target, about))
                    item = nodes[target].get("data")
                    if item is not None and target not in met:
                        (following if isinstance(item, Action) else called)[target] = None
        return following

    ids = (start if isinstance(start, str) else start.id for start in starts)
    front = {vertex: None for vertex in ids if isinstance(toolkit.item(vertex), Action)}
    called: dict[str, None] = {}
    for _ in range(hops + 1):
        met.update(front)
        front = beyond(front, called)
        if not front:
            break
    met.update(called)
    beyond([vertex for vertex in called if isinstance(toolkit.item(vertex), ToolGroup)], met)
    return toolkit.part(met, passed)


def recommend_tools_actions(
    toolkit: Toolkit, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0
) -> tuple[list[Tool], list[Action]]:
    """Return copies of the tools and actions of ``recommend_subgraph``, in the order of the walk."""
    part = recommend_subgraph(toolkit, actions, threshold, hops)
    items = [item for _, item in part.items()]
    tools = [item.copy() for item in items if isinstance(item, Tool)]
    return tools, [item.copy() for item in items if isinstance(item, Action)]


class Explorer:
    """Chooses the edges that are shown in spite of their scores.

    Within one episode the choice for an edge is always the same, so that tools do not come and go between turns.

    Args:
        share: probability that an edge is chosen, from 0 to 1.
        seed: name of the episode.
    """

    def __init__(self, share: float, seed: str) -> None:
        self._share = share
        self._seed = seed

    def extend(self, part: Toolkit, graph: Toolkit) -> frozenset[tuple[str, str]]:
        """Add the chosen Call edges of a recommended part's actions to it, and return them."""
        chosen = [
            (action, target)
            for action, item in part.items()
            if isinstance(item, Action)
            for target in graph.successors(action)
            if isinstance(graph.item(target), Tool | ToolGroup) and not part.has_edge(action, target)
            if random.Random(f"{self._seed}\n{action}\n{target}").random() < self._share  # noqa: S311 - statistics
        ]
        for action, target in chosen:
            # A group comes with its tools.
            part.update(graph.subgraph([target, *graph.successors(target)]))
            part.add_edge(action, target, graph.get_score(action, target))
        return frozenset(chosen)
