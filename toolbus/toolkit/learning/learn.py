"""Learn new scores from static scores and a log: estimate them, judge the estimates, and give a reason for each change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import msgspec

from toolbus.toolkit.learning.evidence import (
    KINDS,
    Edge,
    EdgeKind,
    Episode,
    Parameters,
    Row,
    Scores,
    Tallies,
    Tally,
    ranked,
    reciprocal_rank,
    tallied,
    wanted,
    weight_of,
)

_STEPS = 300
_TINY = 1e-300


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the probability that a Beta(a, b) variable is at most ``x``; accurate to about 1e-10.

    Raises:
        ValueError: ``a`` or ``b`` is not above 0.
    """
    if a <= 0 or b <= 0:
        raise ValueError("the parameters of a beta distribution are above 0")
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    # The continued fraction converges quickly only on this side of the mean.
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return min(1.0, max(0.0, scale * _fraction(x, a, b) / a))


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    upper, lower = 1.0, 1.0 - (a + b) * x / (a + 1)
    lower = 1.0 / (lower or _TINY)
    value = lower
    for step in range(1, _STEPS):
        for factor in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            lower = 1.0 / ((1.0 + factor * lower) or _TINY)
            upper = (1.0 + factor / upper) or _TINY
            change = upper * lower
            value *= change
        if abs(change - 1.0) < 1e-12:
            break
    return value


class Estimate(NamedTuple):
    """The estimate for one edge.

    Attributes:
        edge: the edge and its static score.
        score: the estimated score; the static score when it does not move.
        tally: the evidence.
        strength: how many calls or transitions the estimate rests on, including those of the prior.
        sure: probability that the static score is wrong in the direction of the estimate.
        moved: whether the evidence is sufficient and credible.
    """

    edge: Edge
    score: float
    tally: Tally
    strength: float
    sure: float
    moved: bool


def estimates(static: Scores, tallies: Tallies, parameters: Parameters) -> dict[EdgeKind, dict[str, list[Estimate]]]:
    """Return an estimate for every edge of the static scores; the log adds no edges."""
    return {
        kind: {
            source: (_calls if kind == "call" else _nexts)(source, row, tallies.get((kind, source), {}), parameters)
            for source, row in static.rows[kind].items()
        }
        for kind in KINDS
    }


def _calls(source: str, row: Row, tallies: Mapping[str, Tally], parameters: Parameters) -> list[Estimate]:
    """Estimate each tool by itself: a Beta(k s, k (1 - s)) prior (static score s, worth k calls) plus the weighted outcomes."""
    made = []
    for target, static in sorted(row.items()):
        tally = tallies.get(target) or Tally()
        effective = tally.effective
        strength = parameters.prior_strength + effective
        mean = (parameters.prior_strength * static + effective * tally.rate) / strength
        sure = _sure(static, mean, strength)
        moved = effective >= parameters.min_evidence and sure >= parameters.credibility
        made.append(Estimate(Edge("call", source, target, static), mean if moved else static, tally, strength, sure, moved))
    return made


def _nexts(source: str, row: Row, tallies: Mapping[str, Tally], parameters: Parameters) -> list[Estimate]:
    """Estimate all successors together: a Dirichlet whose prior mean is each static score's share of their sum.

    The most probable successor gets the greatest static score, and the others scores in proportion, so that without evidence
    the scores are the static ones. They move together, once there is enough evidence and one share has credibly changed.
    """
    top = max(row.values(), default=0.0)
    total = sum(row.values())
    known = {target: tallies.get(target) or Tally() for target in sorted(row)}
    whole = _together(known.values())
    if total <= 0:
        return [Estimate(Edge("next", source, target, row[target]), row[target], tally, 0.0, 0.0, False) for target, tally in known.items()]
    strength = parameters.next_strength + whole.effective
    shares: dict[str, float] = {}
    sure: dict[str, float] = {}
    for target, tally in known.items():
        before = row[target] / total
        observed = tally.mass / whole.mass if whole.mass > 0 else 0.0
        shares[target] = (parameters.next_strength * before + whole.effective * observed) / strength
        sure[target] = _sure(before, shares[target], strength)
    moved = whole.effective >= parameters.min_evidence and max(sure.values()) >= parameters.credibility
    best = max(shares.values())
    return [
        Estimate(
            Edge("next", source, target, row[target]),
            top * shares[target] / best if moved else row[target],
            tally,
            strength,
            sure[target],
            moved,
        )
        for target, tally in known.items()
    ]


def _together(tallies: Iterable[Tally]) -> Tally:
    """Return the tally of all the uses that several count."""
    columns = zip(*map(msgspec.structs.astuple, tallies), strict=True)
    return Tally(*map(sum, columns))


def _sure(before: float, mean: float, strength: float) -> float:
    """Return the posterior probability that the truth lies beyond ``before``, on the side of ``mean``."""
    a, b = mean * strength, (1 - mean) * strength
    if a <= 0 or b <= 0:  # a static score of 0 or 1 without evidence against it
        return 0.0
    below = beta_cdf(before, a, b)
    return max(below, 1 - below)


def kept_in_order(row: list[Estimate]) -> list[float]:
    """Return the scores closest to the estimates that keep the order of edges: isotonic regression, weighted by strength.

    Edges that do not move keep their scores. Edges that would change places get equal scores.
    """
    # Sorting by estimate among equal static scores lets these differ, since they have no order to keep.
    order = sorted(range(len(row)), key=lambda index: (row[index].edge.score, row[index].score))
    blocks: list[_Block] = []
    for index in order:
        estimate = row[index]
        block = _Block(estimate.score, estimate.strength if estimate.moved else math.inf, [index])
        while blocks and blocks[-1].score > block.score:
            block = blocks.pop().merged(block)
        blocks.append(block)
    scores = [0.0] * len(row)
    for block in blocks:
        for member in block.members:
            scores[member] = block.score
    return scores


class _Block(NamedTuple):
    """Edges that share a score; an infinite weight fixes the score."""

    score: float
    weight: float
    members: list[int]

    def merged(self, other: _Block) -> _Block:
        """Return both blocks as one."""
        members = self.members + other.members
        for fixed in (self, other):
            if math.isinf(fixed.weight):
                return _Block(fixed.score, math.inf, members)
        weight = self.weight + other.weight
        return _Block((self.score * self.weight + other.score * other.weight) / weight, weight, members)


# With fewer episodes the spread between episodes is unknown.
LEAST_EPISODES = 20

Gains = Callable[[Episode], Iterator[tuple[float, float]]]
"""Yields the gain of each choice of an episode, and its weight."""


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


def _cross_validated(logged: Sequence[Episode], parameters: Parameters, learned: Callable[[list[Episode]], Gains]) -> Gain:
    """Return the gain over all parts of the log; its error is that of a ratio of sums over independent episodes."""
    sums: list[tuple[float, float]] = []
    for fold in range(parameters.folds):
        gains = learned([episode for number, episode in enumerate(logged) if number % parameters.folds != fold])
        sums += [_weighted(gains(episode)) for episode in logged[fold :: parameters.folds]]
    sums = [each for each in sums if each[1] > 0]
    weight = sum(each[1] for each in sums)
    if weight <= 0:
        return Gain(0.0, 0.0, 0, False)
    mean = sum(each[0] for each in sums) / weight
    error = math.sqrt(sum((each[0] - mean * each[1]) ** 2 for each in sums)) / weight
    credible = len(sums) >= LEAST_EPISODES and mean > max(1e-9, NormalDist().inv_cdf(parameters.guard) * error)
    return Gain(round(mean, 9), round(error, 9), len(sums), credible)


def _order_gains(kind: EdgeKind, static: Scores, rest: Sequence[Episode], parameters: Parameters, now: float) -> Gains:
    found = estimates(static, tallied(rest, parameters, now), parameters)[kind]
    orders = {
        source: (ranked(row, row), ranked({each.edge.target: each.score for each in found[source]}, row))
        for source, row in static.rows[kind].items()
    }

    def gains(episode: Episode) -> Iterator[tuple[float, float]]:
        for choice in wanted(episode.calls() if kind == "call" else episode.transitions()):
            if choice.source in orders:
                before, after = orders[choice.source]
                yield reciprocal_rank(after, choice.target) - reciprocal_rank(before, choice.target), weight_of(choice, parameters.clip)

    return gains


def _signal_gains(rest: Sequence[Episode], parameters: Parameters, now: float) -> Gains:
    tallies = tallied(rest, parameters, now)
    whole = _together(tally for (kind, _), row in tallies.items() if kind == "call" for tally in row.values())
    common = whole.rate if whole.mass > 0 else 0.5

    def rate(source: str, target: str) -> float:
        tally = tallies.get(("call", source), {}).get(target)
        if tally is None:
            return common
        return (parameters.prior_strength * common + tally.effective * tally.rate) / (parameters.prior_strength + tally.effective)

    def gains(episode: Episode) -> Iterator[tuple[float, float]]:
        for choice in episode.calls():
            gain = (common - choice.success) ** 2 - (rate(choice.source, choice.target) - choice.success) ** 2
            yield gain, weight_of(choice, parameters.clip)

    return gains


def _weighted(gains: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the weighted sum of gains, and the sum of the weights."""
    total = weights = 0.0
    for gain, weight in gains:
        total += weight * gain
        weights += weight
    return total, weights


# Scores are rounded, so that a last bit of floating point does not count as a change.
DIGITS = 6


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One score that the log moved.

    Attributes:
        kind, source, target: the edge.
        static: score that a person gave the edge.
        old, new: score in the previous revision, and the score now.
        count, successes: number of uses in the log, and of those that succeeded.
        effective: their value in equally weighted uses, after decay and weighting.
        rate: weighted share of successes; for transitions, their share of those that leave the action.
        why: the reason in words.
    """

    kind: EdgeKind
    source: str
    target: str
    static: float
    old: float
    new: float
    count: int = 0
    successes: int = 0
    effective: float = 0.0
    rate: float = 0.0
    why: str


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Learned scores, with the changes and the verdicts behind them."""

    scores: Scores
    changes: list[Change]
    verdicts: list[Verdict]


def learn(static: Scores, logged: Sequence[Episode], parameters: Parameters, *, now: float | None = None) -> Learned:
    """Return the scores that the episodes support; the same arguments give the same scores.

    Ages are counted from ``now`` (seconds since 1970), by default the end of the last episode.

    Raises:
        ConfigurationError: a parameter is out of bounds.
    """
    parameters = parameters.checked()
    now = logged[-1].ended if now is None and logged else now or 0.0
    verdicts = {kind: judged(kind, static, logged, parameters, now) for kind in KINDS}
    found = estimates(static, tallied(logged, parameters, now), parameters)
    edges: list[Edge] = []
    changes: list[Change] = []
    for kind in KINDS:
        for row in found[kind].values():
            scores = _taken(row, verdicts[kind])
            for estimate, score in zip(row, scores, strict=True):
                new = _rounded(score, estimate.edge.score)
                edges.append(msgspec.structs.replace(estimate.edge, score=new))
                if new != estimate.edge.score:
                    changes.append(_change(estimate, new, row, free=verdicts[kind].taken == "all"))
    return Learned(scores=Scores(edges), changes=changes, verdicts=[*verdicts.values()])


def _rounded(score: float, static: float) -> float:
    new = min(1.0, max(0.0, round(score, DIGITS)))
    return static if abs(new - static) <= 10**-DIGITS else new


def _taken(row: list[Estimate], verdict: Verdict) -> list[float]:
    if verdict.taken == "all":
        return [each.score for each in row]
    if verdict.taken == "levels":
        return kept_in_order(row)
    return [each.edge.score for each in row]


def _change(estimate: Estimate, new: float, row: list[Estimate], *, free: bool) -> Change:
    tally, edge = estimate.tally, estimate.edge
    total = sum(each.tally.mass for each in row)
    rate = tally.rate if edge.kind == "call" else (tally.mass / total if total > 0 else 0.0)
    return Change(
        kind=edge.kind,
        source=edge.source,
        target=edge.target,
        static=edge.score,
        old=edge.score,
        new=new,
        count=tally.count,
        successes=tally.successes,
        effective=round(tally.effective, 3),
        rate=round(rate, DIGITS),
        why=_why(estimate, new, rate, free=free),
    )


def _why(estimate: Estimate, new: float, rate: float, *, free: bool) -> str:
    tally, edge = estimate.tally, estimate.edge
    side = "high" if new < edge.score else "low"
    worth = f"worth {tally.effective:.1f}"
    if edge.kind == "call":
        evidence = f"{tally.successes} of {tally.count} calls succeeded ({worth}, {rate:.0%} weighted)"
    else:
        evidence = f"taken {tally.count} times ({worth}), {rate:.0%} of what follows"
    sure = f"the static score is too {side} with {estimate.sure:.1%} probability"
    if edge.kind == "next" and estimate.sure < 0.9:
        sure = "its share is measured against the most frequent successor's"
    return f"{evidence}; {sure}" + ("" if free or abs(new - estimate.score) < 1e-6 else "; held back so that no two change places")
