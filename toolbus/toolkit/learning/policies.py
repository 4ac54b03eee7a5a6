"""Policies to compare: ways to order the tools of a step, and to choose which of them a model is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from toolbus.toolkit.learning.ranking import fused, ranked
from toolbus.toolkit.learning.scores import Scores
from toolbus.toolkit.lexical import Index


class Step(NamedTuple):
    """A situation in which a tool is chosen: the current action and the user's sentence."""

    action: str
    query: str


class Policy(Protocol):
    """An order of tools; ``name`` is its name in tables."""

    name: str

    def order(self, step: Step) -> Sequence[str]:
        """Return the tools for a step, best first; tools that are missing are not offered."""

    def shown(self, step: Step) -> Collection[str]:
        """Return the tools that a model would be shown."""

    def chance(self, action: str, tool: str) -> float | None:
        """Return the predicted probability that a call succeeds; None without a prediction."""


class Flat:
    """Offers every tool, by name, as without a graph."""

    name = "flat list"

    def __init__(self, tools: Sequence[str]) -> None:
        self._tools = sorted(tools)

    def order(self, step: Step) -> Sequence[str]:
        """Return all tools."""
        return self._tools

    def shown(self, step: Step) -> Collection[str]:
        """Return all tools."""
        return self._tools

    def chance(self, action: str, tool: str) -> float | None:
        """Return None."""
        return None


class Graph:
    """Offers an action's tools by score, and shows those from the threshold on."""

    def __init__(self, name: str, scores: Scores, static: Scores, threshold: float) -> None:
        self.name = name
        self._scores = scores
        self._threshold = threshold
        self._orders = {action: ranked(row, static.row("call", action)) for action, row in scores.rows["call"].items()}

    def order(self, step: Step) -> Sequence[str]:
        """Return the action's tools."""
        return self._orders.get(step.action, ())

    def shown(self, step: Step) -> Collection[str]:
        """Return the action's tools whose score reaches the threshold."""
        return [tool for tool, score in self._scores.row("call", step.action).items() if score >= self._threshold]

    def chance(self, action: str, tool: str) -> float | None:
        """Return the score."""
        return self._scores.score("call", action, tool)


class Lexical:
    """Offers all tools that share words with the sentence, by BM25, and shows the best ten."""

    name = "BM25"

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._index = Index({name: f"{name} {text}" for name, text in texts.items()})
        self._orders: dict[str, list[str]] = {}

    def order(self, step: Step) -> Sequence[str]:
        """Return the tools that match."""
        found = self._orders.get(step.query)
        if found is None:
            found = self._orders[step.query] = [match.name for match in self._index.search(step.query, len(self._index))]
        return found

    def shown(self, step: Step) -> Collection[str]:
        """Return the ten best matches."""
        return self.order(step)[:10]

    def chance(self, action: str, tool: str) -> float | None:
        """Return None."""
        return None


class Combined:
    """Offers the action's tools by reciprocal rank in the orders of scores and of words, and shows what the scores show."""

    def __init__(self, name: str, graph: Graph, lexical: Lexical) -> None:
        self.name = name
        self._graph = graph
        self._lexical = lexical
        self._orders: dict[Step, list[str]] = {}

    def order(self, step: Step) -> Sequence[str]:
        """Return the action's tools."""
        found = self._orders.get(step)
        if found is None:
            own = self._graph.order(step)
            among = set(own)
            scores = fused([own, [tool for tool in self._lexical.order(step) if tool in among]])
            found = self._orders[step] = sorted(own, key=lambda tool: -scores[tool])
        return found

    def shown(self, step: Step) -> Collection[str]:
        """Return the tools that the scores show."""
        return self._graph.shown(step)

    def chance(self, action: str, tool: str) -> float | None:
        """Return None, since a rank is no probability."""
        return None
