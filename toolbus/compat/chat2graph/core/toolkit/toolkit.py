"""``Toolkit``: toolbus's graph, with the further attributes that Chat2Graph's code uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Generic, Self, TypeVar

import networkx as nx

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Action, Edge, Item, Tool, ToolGroup, check_score
from toolbus.toolkit.graph import Toolkit as Graph

Kind = TypeVar("Kind", bound=Item)


class Toolkit(Graph):
    """The graph; ``_actions``, ``_tools``, ``_tool_groups`` and ``_scores`` are live mappings of its content."""

    def __init__(self, graph: nx.DiGraph[str] | None = None) -> None:
        super().__init__()
        if graph is not None:
            self._graph = graph

    def add_edge(self, u: str, v: str, score: float | None = None) -> None:
        """Add an edge; missing vertices are added without data, as networkx does."""
        if score is not None:
            check_score(score, f"the score of the edge {u!r} → {v!r}")
        self._graph.add_edge(u, v)
        if score is not None:
            self.set_score(u, v, score)

    def out_degree(self, vertex: str) -> int:
        """Return the number of edges that leave a vertex."""
        return len(self.successors(vertex))

    def vertices_count(self) -> int:
        """Return the number of vertices."""
        return len(self._graph)

    def remove_vertices(self, ids: Iterable[str]) -> None:
        """Remove several vertices, with everything that is useless without them."""
        for vertex in list(ids):
            self.remove_vertex(vertex)

    def to_json_str(self) -> str:
        """Return the ids of the vertices, and the edges between them, as JSON."""
        edges = [{"source": u, "target": v} for u, v in self.edges()]
        return json.dumps({"vertices": [{"id": vertex} for vertex in self.vertices()], "edges": edges}, indent=4)

    @classmethod
    def from_json_str(cls, json_str: str) -> Self:
        """Return a graph without data from the result of ``to_json_str``."""
        document = json.loads(json_str)
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(vertex["id"] for vertex in document["vertices"])
        graph.add_edges_from((edge["source"], edge["target"]) for edge in document["edges"])
        return cls(graph)

    @property
    def _actions(self) -> _Items[Action]:
        return _Items(self, Action)

    @property
    def _tools(self) -> _Items[Tool]:
        return _Items(self, Tool)

    @property
    def _tool_groups(self) -> _Items[ToolGroup]:
        return _Items(self, ToolGroup)

    @property
    def _scores(self) -> _Scores:
        return _Scores(self)


class _Items(MutableMapping[str, Kind], Generic[Kind]):
    """The items of one kind by vertex, not copies; deleting one leaves its vertex without data."""

    def __init__(self, toolkit: Toolkit, kind: type[Kind]) -> None:
        self._toolkit = toolkit
        self._kind = kind

    def __getitem__(self, id: str) -> Kind:
        item: Item | None = self._toolkit.item(id)
        if not isinstance(item, self._kind):
            raise KeyError(id)
        return item

    def __setitem__(self, id: str, item: Kind) -> None:
        self._toolkit.add_vertex(id, data=item)

    def __delitem__(self, id: str) -> None:
        self[id]  # raises KeyError
        del self._toolkit.get_graph().nodes[id]["data"]

    def __iter__(self) -> Iterator[str]:
        return (vertex for vertex, item in self._toolkit.items() if isinstance(item, self._kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Scores(MutableMapping[Edge, float]):
    """The scores that were set explicitly, by edge."""

    def __init__(self, toolkit: Toolkit) -> None:
        self._edges: Any = toolkit.get_graph().edges
        self._toolkit = toolkit

    def __getitem__(self, edge: Edge) -> float:
        score: float = self._edges[edge]["score"]
        return score

    def __setitem__(self, edge: Edge, score: float) -> None:
        try:
            self._toolkit.set_score(*edge, score)
        except ToolkitError as error:
            raise KeyError(edge) from error

    def __delitem__(self, edge: Edge) -> None:
        del self._edges[edge]["score"]

    def __iter__(self) -> Iterator[Edge]:
        return ((u, v) for u, v, score in self._edges.data("score") if score is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
