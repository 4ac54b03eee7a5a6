"""What is compared: ways to order the tools of a step, and to decide which of them a model is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from toolbus.toolkit.learning.ranking import fused, ranked
from toolbus.toolkit.learning.scores import Scores
from toolbus.toolkit.lexical import Index


class Step(NamedTuple):
    """Where a tool is chosen: in which action, and for which sentence."""

    action: str
    query: str


class Policy(Protocol):
    """An order of tools; ``name`` is its name in tables."""

    name: str

    def order(self, step: Step) -> Sequence[str]:
        """Tools for a step, the best first; what is not in it is not offered."""

    def shown(self, step: Step) -> Collection[str]:
        """The tools that a model would be shown."""

    def chance(self, action: str, tool: str) -> float | None:
        """The probability of success that it gives a call; None when it gives none."""


class Flat:
    """Every tool there is, by name, as without a graph."""

    name = "flat list"

    def __init__(self, tools: Sequence[str]) -> None:
        self._tools = sorted(tools)

    def order(self, step: Step) -> Sequence[str]:
        """All tools."""
        return self._tools

    def shown(self, step: Step) -> Collection[str]:
        """All tools."""
        return self._tools

    def chance(self, action: str, tool: str) -> float | None:
        """None."""
        return None


class Graph:
    """An action's tools by score; shown are those from the threshold."""

    def __init__(self, name: str, scores: Scores, static: Scores, threshold: float) -> None:
        self.name = name
        self._scores = scores
        self._threshold = threshold
        self._orders = {action: ranked(row, static.row("call", action)) for action, row in scores.rows["call"].items()}

    def order(self, step: Step) -> Sequence[str]:
        """The action's tools."""
        return self._orders.get(step.action, ())

    def shown(self, step: Step) -> Collection[str]:
        """The action's tools with the threshold's score or a better one."""
        return [tool for tool, score in self._scores.row("call", step.action).items() if score >= self._threshold]

    def chance(self, action: str, tool: str) -> float | None:
        """The score."""
        return self._scores.score("call", action, tool)


class Lexical:
    """All tools whose words the sentence has, by BM25; shown are the best ten."""

    name = "BM25"

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._index = Index({name: f"{name} {text}" for name, text in texts.items()})
        self._orders: dict[str, list[str]] = {}

    def order(self, step: Step) -> Sequence[str]:
        """The tools that match."""
        found = self._orders.get(step.query)
        if found is None:
            found = self._orders[step.query] = [match.name for match in self._index.search(step.query, len(self._index))]
        return found

    def shown(self, step: Step) -> Collection[str]:
        """The ten that match best."""
        return self.order(step)[:10]

    def chance(self, action: str, tool: str) -> float | None:
        """None."""
        return None


class Combined:
    """The action's tools by reciprocal rank in the order of the scores and in that of the words; shown are those that the scores show."""

    def __init__(self, name: str, graph: Graph, lexical: Lexical) -> None:
        self.name = name
        self._graph = graph
        self._lexical = lexical
        self._orders: dict[Step, list[str]] = {}

    def order(self, step: Step) -> Sequence[str]:
        """The action's tools."""
        found = self._orders.get(step)
        if found is None:
            own = self._graph.order(step)
            among = set(own)
            scores = fused([own, [tool for tool in self._lexical.order(step) if tool in among]])
            found = self._orders[step] = sorted(own, key=lambda tool: -scores[tool])
        return found

    def shown(self, step: Step) -> Collection[str]:
        """What the scores show."""
        return self._graph.shown(step)

    def chance(self, action: str, tool: str) -> float | None:
        """None: a rank is no probability."""
        return None
