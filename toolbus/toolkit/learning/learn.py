"""Learn new scores from static scores and a log, with a reason for each change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from toolbus.toolkit.learning.estimate import Estimate, estimates, kept_in_order
from toolbus.toolkit.learning.evidence import Episode, Parameters, tallied
from toolbus.toolkit.learning.judge import Verdict, judged
from toolbus.toolkit.learning.scores import KINDS, Edge, EdgeKind, Scores

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
    count: int
    successes: int
    effective: float
    rate: float
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
