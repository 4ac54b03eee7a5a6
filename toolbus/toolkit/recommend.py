"""Recommend actions and tools: a bounded walk from the current actions along edges with a high score."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import UNSET, Toolkit, check_score
from toolbus.toolkit.items import Action, Tool, ToolGroup

Graph = TypeVar("Graph", bound=Toolkit)


def recommend_subgraph(toolkit: Graph, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0) -> Graph:
    """Return the part of a graph that is useful when one of these actions is current.

    It holds these actions, those that at most ``hops`` Next edges lead to, the tools and groups that all of them call, and the
    tools of those groups. Only edges whose score is at least ``threshold`` are followed and kept. Vertices are in the order of the
    walk, which reads nothing else of the graph.

    Args:
        actions: actions or their ids; those that are not in the graph are ignored.

    Raises:
        ToolkitError: the threshold is not within 0 and 1, or hops is not a whole number from 0.
    """
    check_score(threshold, "the threshold")
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
        raise ToolkitError(f"hops is {hops!r}, which is not a whole number from 0")
    walk = _Walk(toolkit, threshold)
    walk.follow(actions, hops)
    return toolkit.part(walk.met, ((u, v, about) for u, targets in walk.passed.items() for v, about in targets))


def recommend_tools_actions(
    toolkit: Toolkit, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0
) -> tuple[list[Tool], list[Action]]:
    """Return copies of the tools and actions of ``recommend_subgraph``, in the order of the walk."""
    part = recommend_subgraph(toolkit, actions, threshold, hops)
    items = [item for _, item in part.items()]
    tools = [item.copy() for item in items if isinstance(item, Tool)]
    return tools, [item.copy() for item in items if isinstance(item, Action)]


class _Walk:
    """Walks the graph and reads each edge from a visited vertex once.

    Attributes:
        met: the visited vertices, in order.
        passed: for each vertex its edges with a sufficient score, as (target, attributes).
    """

    def __init__(self, toolkit: Toolkit, threshold: float) -> None:
        self._nodes, self._edges = toolkit.tables()
        self._threshold = threshold
        self.met: dict[str, None] = {}
        self.passed: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}

    def follow(self, starts: Iterable[Action | str], hops: int) -> None:
        """Visit the actions within ``hops`` of these, then what they call, then the tools of the called groups."""
        ids = (start if isinstance(start, str) else start.id for start in starts)
        front = {vertex: None for vertex in ids if isinstance(self._item(vertex), Action)}
        called: dict[str, None] = {}
        for left in range(hops, -1, -1):
            self.met.update(front)
            front = self._beyond(front, called)
            if not front or not left:
                break
        self.met.update(called)
        groups = [vertex for vertex in called if isinstance(self._item(vertex), ToolGroup)]
        self._beyond(groups, self.met)

    def _beyond(self, ids: Iterable[str], called: dict[str, None]) -> dict[str, None]:
        """Return the unvisited actions that follow these vertices; add what they call to ``called``."""
        actions: dict[str, None] = {}
        threshold, nodes = self._threshold, self._nodes
        for vertex in ids:
            passed = [edge for edge in self._edges[vertex].items() if edge[1].get("score", UNSET) >= threshold]
            self.passed[vertex] = passed
            for target, _ in passed:
                item = nodes[target].get("data")
                if isinstance(item, Action):
                    if target not in self.met:
                        actions[target] = None
                elif item is not None:
                    called[target] = None
        return actions

    def _item(self, vertex: str) -> object:
        return self._nodes[vertex].get("data") if vertex in self._nodes else None


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

    def chooses(self, u: str, v: str) -> bool:
        """Return whether the edge is shown."""
        return random.Random(f"{self._seed}\n{u}\n{v}").random() < self._share  # noqa: S311 - statistics

    def extend(self, part: Toolkit, graph: Toolkit) -> frozenset[tuple[str, str]]:
        """Add the chosen Call edges of a recommended part's actions to it, and return them."""
        chosen: set[tuple[str, str]] = set()
        for action in [vertex for vertex, item in part.items() if isinstance(item, Action)]:
            for target in graph.successors(action):
                item = graph.item(target)
                if item is None or isinstance(item, Action) or part.has_edge(action, target) or not self.chooses(action, target):
                    continue
                chosen.add((action, target))
                part.add_vertex(target, data=item)
                part.add_edge(action, target, graph.get_score(action, target))
                if isinstance(item, ToolGroup):
                    _add_members(part, graph, target)
        return frozenset(chosen)


def _add_members(part: Toolkit, graph: Toolkit, group: str) -> None:
    for member in graph.successors(group):
        item = graph.item(member)
        if item is not None:
            part.add_vertex(member, data=item)
            part.add_edge(group, member)
