"""Estimate scores from evidence: a posterior for each edge, and whether it replaces the static score. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from toolbus.toolkit.learning.evidence import Parameters, Tallies, Tally
from toolbus.toolkit.learning.scores import KINDS, Edge, EdgeKind, Row, Scores

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
    made: dict[EdgeKind, dict[str, list[Estimate]]] = {"call": {}, "next": {}}
    for kind in KINDS:
        of_row = _calls if kind == "call" else _nexts
        for source, row in static.rows[kind].items():
            made[kind][source] = of_row(source, row, tallies.get((kind, source), {}), parameters)
    return made


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
    whole = _together(known)
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


def _together(tallies: Mapping[str, Tally]) -> Tally:
    whole = Tally()
    for tally in tallies.values():
        whole.count += tally.count
        whole.successes += tally.successes
        whole.mass += tally.mass
        whole.square += tally.square
        whole.hits += tally.hits
    return whole


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
