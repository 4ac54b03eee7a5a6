"""``Toolkit``: a directed graph of actions, tools and groups whose edges have scores."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from toolbus.bus.support.safe_text import type_name

try:
    import networkx as nx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the toolkit needs networkx: pip install 'toolbus[toolkit]' ({error})", name="networkx") from None

from toolbus.bus.values.results import ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup, a, kind_of

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
    """

    def __init__(self) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()

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
        return [(vertex, {"data": handed_out(item)}) for vertex, item in self.items()]

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
        return u in self._graph and v in self._graph.adj[u]

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
            ToolkitError: the item is no action, tool or group, or of another kind than the existing one.
        """
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
        if not self._graph.has_edge(u, v):
            raise ToolkitError(f"there is no edge {u!r} → {v!r} to score: add it first")
        self._graph.edges[u, v]["score"] = float(score)

    def remove_edge(self, u: str, v: str) -> None:
        """Remove an edge with its score; all vertices stay.

        Raises:
            ToolkitError: there is no such edge.
        """
        if not self._graph.has_edge(u, v):
            raise ToolkitError(f"there is no edge {u!r} → {v!r} to remove")
        self._graph.remove_edge(u, v)

    def remove_vertex(self, id: str) -> None:
        """Remove a vertex, its edges, and what is useless without it; do nothing when there is no such vertex.

        Removing an action removes the tools that nothing else leads to, removing a group removes its tools, and removing a group's
        last tool removes the group. A group stays when the last action that called it is removed, because its tools still exist.
        """
        waiting = [id]
        while waiting:
            gone = waiting.pop()
            if gone in self._graph:
                waiting += self._falls_with(gone)
                self._graph.remove_node(gone)

    def update(self, other: Toolkit) -> None:
        """Add another graph's vertices and edges; vertices and edges of this graph keep their items and scores.

        Raises:
            ToolkitError: a vertex has different kinds in the two graphs; nothing was changed.
        """
        for vertex, item in other.items():
            here = kind_of(self.item(vertex))
            if here and here != kind_of(item):
                raise ToolkitError(f"vertex {vertex!r} is {a(here)} here and {a(kind_of(item))} in the other graph; rename one of them")
        mine = self._graph
        mine.add_nodes_from([(vertex, {"data": item}) for vertex, item in other.items() if self.item(vertex) is None])
        mine.add_edges_from([(u, v, dict(about)) for u, v, about in other.get_graph().edges(data=True) if not mine.has_edge(u, v)])

    def subgraph(self, ids: Iterable[str]) -> Self:
        """Return a new graph of these vertices and the edges between them; unknown ids are ignored."""
        kept, edges = dict.fromkeys(vertex for vertex in ids if vertex in self._graph), self.tables()[1]
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


def handed_out(item: Item) -> Item:
    """Return the item as callers get it: a copy, except for groups."""
    return item if isinstance(item, ToolGroup) else item.copy()


def check_score(score: float, what: str) -> None:
    """Check that a score or threshold is a number from 0 to 1.

    Raises:
        ToolkitError: it is not; the message begins with ``what``.
    """
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score) or not 0.0 <= score <= 1.0:
        raise ToolkitError(f"{what} is {score!r}, which is not a number from 0 to 1")
