"""Evaluate policies: replay held-out episodes and measure how high each policy ranks the tools that succeeded."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.evidence import (
    Episode,
    Parameters,
    Scores,
    ranked,
    reciprocal_rank,
    wanted,
    weight_of,
)
from toolbus.toolkit.learning.learn import Learned, learn
from toolbus.toolkit.starting import Index, fused


class Step(NamedTuple):
    """A situation in which a tool is chosen: the current action and the user's sentence."""

    action: str
    query: str


class Policy(NamedTuple):
    """An order of tools.

    Attributes:
        name: its name in tables.
        order: returns the tools for a step, best first; tools that are missing are not offered.
        shown: returns the tools that a model would be shown.
        chance: returns the predicted probability that a call of a tool in an action succeeds; None without a prediction.
    """

    name: str
    order: Callable[[Step], Sequence[str]]
    shown: Callable[[Step], Collection[str]]
    chance: Callable[[str, str], float | None] = lambda action, tool: None


def flat(tools: Sequence[str]) -> Policy:
    """Offer every tool, by name, as without a graph."""
    order = sorted(tools)
    return Policy("flat list", lambda step: order, lambda step: order)


def by_graph(name: str, scores: Scores, static: Scores, threshold: float) -> Policy:
    """Offer an action's tools by score, and show those from the threshold on; a score is the chance of success."""
    orders = {action: ranked(row, static.row("call", action)) for action, row in scores.rows["call"].items()}

    def shown(step: Step) -> list[str]:
        return [tool for tool, score in scores.row("call", step.action).items() if score >= threshold]

    return Policy(name, lambda step: orders.get(step.action, ()), shown, functools.partial(scores.score, "call"))


def by_words(texts: Mapping[str, str]) -> Policy:
    """Offer all tools that share words with the sentence, by BM25, and show the best ten."""
    index = Index({name: f"{name} {text}" for name, text in texts.items()})

    @functools.cache
    def found(query: str) -> list[str]:
        return [match.name for match in index.search(query, len(index))]

    return Policy("BM25", lambda step: found(step.query), lambda step: found(step.query)[:10])


def combined(name: str, graph: Policy, lexical: Policy) -> Policy:
    """Offer the action's tools by reciprocal rank in the orders of scores and of words, and show what the scores show."""

    @functools.cache
    def order(step: Step) -> list[str]:
        own = graph.order(step)
        among = set(own)
        scores = fused([own, [tool for tool in lexical.order(step) if tool in among]])
        return sorted(own, key=lambda tool: -scores[tool])

    return Policy(name, order, graph.shown)


BINS = 10
MEASURES = ("hit@1", "hit@3", "hit@5", "mrr", "reach", "tools shown", "brier")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an evaluation.

    Attributes:
        held_out: share of episodes, taken from the end, that are only replayed.
        threshold: lowest score of a tool that is shown.
        resamples: number of bootstrap samples of the held-out episodes.
        level: probability that an interval covers.
        seed: seed of the bootstrap.
    """

    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.3
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    resamples: Annotated[int, Meta(ge=100, le=100_000)] = 500
    level: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    seed: int = 0


class Figure(msgspec.Struct, frozen=True):
    """A measured value with its bootstrap interval; None where there was nothing to measure."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "-"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy.

    Attributes:
        policy: its name.
        figures: values by measure. ``hit@k``: the tool that succeeded is among the first k. ``mrr``: mean reciprocal rank. ``reach``: the
            tool is among those shown. These are weighted by the inverse of the propensity. ``tools shown``: mean number per visit of an
            action. ``brier``: mean squared difference between score and outcome.
        ece: expected calibration error in ten bins; None for policies without probabilities.
    """

    policy: str
    figures: dict[str, Figure]
    ece: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two policies on the same episodes: the difference of a measure, and its share of the other's value."""

    better: str
    than: str
    measure: str
    difference: Figure
    relative: Figure


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an evaluation, with the amount of data behind them.

    Attributes:
        learned_from, held_out: numbers of episodes.
        calls, transitions: numbers of held-out calls that succeeded, and of changes of action.
        tools, actions: results for the order of tools, and for the order of following actions.
        comparisons: learned scores against static ones.
        learned: the scores learned from the first part of the log.
    """

    learned_from: int
    held_out: int
    calls: int
    transitions: int
    options: Options
    tools: list[Standing]
    actions: list[Standing]
    comparisons: list[Comparison]
    learned: Learned


class Sums:
    """Sums over one episode: a numerator and a denominator for each measure."""

    __slots__ = ("over", "values")

    def __init__(self, measures: Sequence[str]) -> None:
        self.values = dict.fromkeys(measures, 0.0)
        self.over = dict.fromkeys(measures, 0.0)

    def add(self, measure: str, value: float, weight: float = 1.0) -> None:
        """Add one observation."""
        self.values[measure] += weight * value
        self.over[measure] += weight


def evaluate(
    static: Scores, texts: Mapping[str, str], logged: Sequence[Episode], parameters: Parameters, options: Options | None = None
) -> Evaluation:
    """Learn from the first episodes and replay the last.

    Raises:
        ConfigurationError: there are too few episodes to split, or there are no call edges.
    """
    options = options or Options()
    cut = round(len(logged) * (1 - options.held_out))
    if not 0 < cut < len(logged):
        raise ConfigurationError(f"a log of {len(logged)} episodes can't be split; record more, or change the part that is held out")
    if not static.rows["call"]:
        raise ConfigurationError("there are no call edges to evaluate")
    learned = learn(static, logged[:cut], parameters)
    held_out = logged[cut:]
    compared = {"static": static, "learned": learned.scores}
    by_static, by_learned = (by_graph(name, scores, static, options.threshold) for name, scores in compared.items())
    tools = static.tools
    lexical = by_words({tool: texts.get(tool, "") for tool in tools})
    policies = [flat(tools), by_static, lexical, by_learned]
    policies += [combined("static + BM25", by_static, lexical), combined("learned + BM25", by_learned, lexical)]
    sums = {policy.name: [_replayed(policy, episode, parameters.clip) for episode in held_out] for policy in policies}
    nexts = {name: [_followed(scores, static, episode, parameters.clip) for episode in held_out] for name, scores in compared.items()}
    samples = _samples(len(held_out), options)
    comparisons = [
        _compared(sums, "learned", "static", measure, samples, options) for measure in ("hit@1", "hit@3", "hit@5", "mrr", "reach")
    ]
    comparisons.append(_compared(sums, "learned + BM25", "static + BM25", "hit@3", samples, options))
    return Evaluation(
        learned_from=cut,
        held_out=len(held_out),
        calls=sum(len(wanted(episode.calls())) for episode in held_out),
        transitions=sum(len(episode.transitions()) for episode in held_out),
        options=options,
        tools=[_standing(policy.name, sums[policy.name], samples, options, _ece(policy, held_out)) for policy in policies],
        actions=[_standing(name, found, samples, options, None) for name, found in nexts.items()],
        comparisons=[*comparisons, _compared(nexts, "learned", "static", "next hit@1", samples, options)],
        learned=learned,
    )


def _replayed(policy: Policy, episode: Episode, clip: float) -> Sums:
    sums = Sums(MEASURES)
    before = None
    for execution in episode.executions:
        step = Step(execution.action, execution.query)
        if execution.action != before:
            sums.add("tools shown", len(policy.shown(step)))
        before = execution.action
        chance = policy.chance(execution.action, execution.tool)
        if execution.conclusive and chance is not None:
            sums.add("brier", (chance - (execution.outcome == "success")) ** 2)
        if execution.outcome != "success":
            continue
        weight = min(clip, 1.0 / execution.shown.get(execution.tool, 1.0))
        order = policy.order(step)
        for k in (1, 3, 5):
            sums.add(f"hit@{k}", execution.tool in order[:k], weight)
        sums.add("mrr", reciprocal_rank(order, execution.tool), weight)
        sums.add("reach", execution.tool in policy.shown(step), weight)
    return sums


def _followed(scores: Scores, static: Scores, episode: Episode, clip: float) -> Sums:
    sums = Sums(("next hit@1", "next hit@3", "next mrr"))
    for choice in episode.transitions():
        order = ranked(scores.row("next", choice.source), static.row("next", choice.source))
        weight = weight_of(choice, clip)
        for k in (1, 3):
            sums.add(f"next hit@{k}", choice.target in order[:k], weight)
        sums.add("next mrr", reciprocal_rank(order, choice.target), weight)
    return sums


# -- intervals ---------------------------------------------------------------------------------------


def _samples(count: int, options: Options) -> list[list[int]]:
    """Return bootstrap samples of episode numbers; the same for every policy, so that differences are paired."""
    draw = random.Random(options.seed)  # noqa: S311 - statistics
    return [draw.choices(range(count), k=count) for _ in range(options.resamples)]


def _ratios(sums: Sequence[Sums], measure: str, samples: Sequence[Sequence[int]]) -> list[float | None]:
    """Return a measure on all episodes, then on each sample."""
    values, over = [each.values[measure] for each in sums], [each.over[measure] for each in sums]
    found = []
    for sample in [range(len(sums)), *samples]:
        weight = sum(map(over.__getitem__, sample))
        found.append(sum(map(values.__getitem__, sample)) / weight if weight > 0 else None)
    return found


def _figure(ratios: Sequence[float | None], options: Options) -> Figure:
    drawn = sorted(each for each in ratios[1:] if each is not None)
    if ratios[0] is None or not drawn:
        return Figure(None, None, None)
    tail = (1 - options.level) / 2
    low, high = (drawn[min(len(drawn) - 1, int(share * len(drawn)))] for share in (tail, 1 - tail))
    return Figure(round(ratios[0], 6), round(low, 6), round(high, 6))


def _standing(name: str, sums: Sequence[Sums], samples: Sequence[Sequence[int]], options: Options, ece: float | None) -> Standing:
    figures = {measure: _figure(_ratios(sums, measure, samples), options) for measure in sums[0].values}
    return Standing(policy=name, figures=figures, ece=ece)


def _compared(
    sums: Mapping[str, Sequence[Sums]], better: str, than: str, measure: str, samples: Sequence[Sequence[int]], options: Options
) -> Comparison:
    one, other = (_ratios(sums[name], measure, samples) for name in (better, than))

    def paired(of: Callable[[float, float], float | None]) -> Figure:
        return _figure([None if a is None or b is None else of(a, b) for a, b in zip(one, other, strict=True)], options)

    return Comparison(
        better=better,
        than=than,
        measure=measure,
        difference=paired(lambda a, b: a - b),
        relative=paired(lambda a, b: a / b - 1 if b > 0 else None),
    )


def _ece(policy: Policy, held_out: Sequence[Episode]) -> float | None:
    """Return the mean distance between score and success rate over ten bins of scores, weighted by the calls in each."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for episode in held_out:
        for choice in episode.calls():
            chance = policy.chance(choice.source, choice.target)
            if chance is not None:
                bins[min(BINS - 1, int(chance * BINS))].append((chance, choice.success))
    total = sum(map(len, bins))
    if not total:
        return None
    distances = [abs(sum(chance for chance, _ in each) - sum(success for _, success in each)) for each in bins]
    return round(sum(distances) / total, 6)
