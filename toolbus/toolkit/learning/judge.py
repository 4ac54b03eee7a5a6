"""Judge estimates by cross-validation, so that a log without information changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple, Protocol

import msgspec

from toolbus.toolkit.learning.estimate import estimates
from toolbus.toolkit.learning.evidence import Episode, Parameters, Tallies, fused, ranked, reciprocal_rank, tallied, wanted, weight_of
from toolbus.toolkit.learning.scores import EdgeKind, Scores
from toolbus.toolkit.starting import Index

# With fewer episodes the spread between episodes is unknown.
LEAST_EPISODES = 20

Weighted = tuple[float, float]
"""The weighted sum of an episode's gains, and the sum of the weights."""


class Gain(msgspec.Struct, frozen=True):
    """A mean gain over episodes with its standard error; ``credible`` when it exceeds 0 with the required probability."""

    mean: float
    error: float
    episodes: int
    credible: bool

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f} on {self.episodes} episodes"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted estimates of one kind, judged on episodes that they were not learned from.

    Attributes:
        kind: kind of edges.
        taken: ``all``; ``levels``: only as far as no two edges of an action change places; or ``nothing``.
        order: gain of the new order over the static one, in mean reciprocal rank.
        signal: gain of separate success rates over one common rate, in Brier score; None for transitions.
        why: the reason in words.
    """

    kind: EdgeKind
    taken: Literal["all", "levels", "nothing"]
    order: Gain
    signal: Gain | None
    why: str


def judged(kind: EdgeKind, static: Scores, logged: Sequence[Episode], parameters: Parameters, now: float) -> Verdict:
    """Judge the estimates of one kind: each part of the log judges what was learned from the other parts.

    The order is judged by the mean reciprocal rank of the successful choices, weighted by inverse propensity. When it is not
    credibly better, the estimates may still be right about how often tools succeed, provided that tools differ at all. This is
    judged by predicting outcomes from each tool's own rate, against one common rate.
    """
    order = _cross_validated(logged, parameters, lambda rest: _order_gains(kind, static, rest, parameters, now))
    if order.credible:
        return Verdict(kind=kind, taken="all", order=order, signal=None, why=f"the new order is better: mean reciprocal rank {order}")
    why = f"the new order is not better with {parameters.guard:.0%} probability: mean reciprocal rank {order}"
    if order.episodes < LEAST_EPISODES:
        why = f"{order.episodes} episodes are too few to judge the new order by; it takes {LEAST_EPISODES}"
    if kind == "next":
        return Verdict(kind=kind, taken="nothing", order=order, signal=None, why=f"{why}; nothing changes")
    signal = _cross_validated(logged, parameters, lambda rest: _signal_gains(rest, parameters, now))
    if signal.credible:
        why = f"{why}; but success differs between tools (Brier score {signal}), so scores move as far as none change places"
        return Verdict(kind=kind, taken="levels", order=order, signal=signal, why=why)
    return Verdict(
        kind=kind, taken="nothing", order=order, signal=signal, why=f"{why}; success does not differ between tools; nothing changes"
    )


def _cross_validated(
    logged: Sequence[Episode], parameters: Parameters, learned: Callable[[list[Episode]], Callable[[Episode], Weighted]]
) -> Gain:
    """Return the gain over all parts of the log; its error is that of a ratio of sums over independent episodes."""
    sums: list[Weighted] = []
    for fold in range(parameters.folds):
        gain = learned([episode for number, episode in enumerate(logged) if number % parameters.folds != fold])
        sums += [gain(episode) for episode in logged[fold :: parameters.folds]]
    sums = [each for each in sums if each[1] > 0]
    weight = sum(each[1] for each in sums)
    if weight <= 0:
        return Gain(0.0, 0.0, 0, False)
    mean = sum(each[0] for each in sums) / weight
    error = math.sqrt(sum((each[0] - mean * each[1]) ** 2 for each in sums)) / weight
    credible = len(sums) >= LEAST_EPISODES and mean > max(1e-9, NormalDist().inv_cdf(parameters.guard) * error)
    return Gain(round(mean, 9), round(error, 9), len(sums), credible)


def _order_gains(
    kind: EdgeKind, static: Scores, rest: Sequence[Episode], parameters: Parameters, now: float
) -> Callable[[Episode], Weighted]:
    found = estimates(static, tallied(rest, parameters, now), parameters)[kind]
    orders = {
        source: (ranked(row, row), ranked({each.edge.target: each.score for each in found[source]}, row))
        for source, row in static.rows[kind].items()
    }

    def gain(episode: Episode) -> Weighted:
        return _weighted(_order_gain(episode, kind, orders, parameters.clip))

    return gain


def _order_gain(
    episode: Episode, kind: EdgeKind, orders: Mapping[str, tuple[list[str], list[str]]], clip: float
) -> Iterable[tuple[float, float]]:
    for choice in wanted(episode.calls() if kind == "call" else episode.transitions()):
        if choice.source in orders:
            before, after = orders[choice.source]
            yield reciprocal_rank(after, choice.target) - reciprocal_rank(before, choice.target), weight_of(choice, clip)


def _signal_gains(rest: Sequence[Episode], parameters: Parameters, now: float) -> Callable[[Episode], Weighted]:
    tallies = tallied(rest, parameters, now)
    common = _common_rate(tallies)

    def rate(source: str, target: str) -> float:
        tally = tallies.get(("call", source), {}).get(target)
        if tally is None:
            return common
        return (parameters.prior_strength * common + tally.effective * tally.rate) / (parameters.prior_strength + tally.effective)

    def gain(episode: Episode) -> Weighted:
        return _weighted(
            (
                (common - choice.success) ** 2 - (rate(choice.source, choice.target) - choice.success) ** 2,
                weight_of(choice, parameters.clip),
            )
            for choice in episode.calls()
        )

    return gain


def _common_rate(tallies: Tallies) -> float:
    calls = [tally for (kind, _), row in tallies.items() if kind == "call" for tally in row.values()]
    mass = sum(tally.mass for tally in calls)
    return sum(tally.hits for tally in calls) / mass if mass > 0 else 0.5


def _weighted(gains: Iterable[tuple[float, float]]) -> Weighted:
    total = weights = 0.0
    for gain, weight in gains:
        total += weight * gain
        weights += weight
    return total, weights


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
