"""Show tools below the threshold now and then, so that a score that is too low can be found out."""

from __future__ import annotations

import random

from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, ToolGroup


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
