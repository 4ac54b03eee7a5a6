"""Estimates from evidence, checked against values that are known or worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.learning.samples import DAY, START, calls, execution, scores
from toolbus import ConfigurationError
from toolbus.toolkit.learning import Edge, Parameters, Scores, episodes
from toolbus.toolkit.learning.evidence import Tally, tallied
from toolbus.toolkit.learning.learn import Estimate, beta_cdf, estimates, kept_in_order

PARAMETERS = Parameters()


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.001, 0.999))
def test_the_beta_distribution_is_the_binomials(a: int, b: int, x: float) -> None:
    """For whole parameters it is a binomial tail, which is summed exactly here."""
    n = a + b - 1
    tail = math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert beta_cdf(x, a, b) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(0.5, 0.5, 2 / math.pi * math.asin(math.sqrt(0.3))), (2.5, 1, 0.3**2.5), (1, 7.5, 1 - 0.7**7.5)]
)
def test_the_beta_distribution_between_whole_numbers(a: float, b: float, expected: float) -> None:
    """Cases with a closed form; the ends; and what is no distribution."""
    assert beta_cdf(0.3, a, b) == pytest.approx(expected, abs=1e-10)
    assert (beta_cdf(0, a, b), beta_cdf(1, a, b)) == (0, 1)
    with pytest.raises(ValueError, match="above 0"):
        beta_cdf(0.5, 0, 1)


def estimate(static: Scores, log: list, target: str, parameters: Parameters = PARAMETERS, now: float | None = None) -> Estimate:
    """The estimate of one call edge of the action ``count``."""
    logged = episodes(log)
    found = estimates(static, tallied(logged, parameters, logged[-1].ended if now is None else now), parameters)
    return next(each for each in found["call"]["count"] if each.edge.target == target)


def test_a_score_is_the_mean_of_prior_and_outcomes() -> None:
    """Twelve of sixteen calls and a static score of 0.2 worth four calls give (0.8 + 12) / 20."""
    log = calls("sql", [True] * 12 + [False] * 4, at=START)
    found = estimate(scores(count={"sql": 0.2}), log, "sql")
    assert found.score == pytest.approx(12.8 / 20)
    assert found.sure == pytest.approx(1 - beta_cdf(0.2, 12.8, 7.2))
    assert (found.moved, found.tally.count, found.tally.successes) == (True, 16, 12)


def test_old_executions_count_for_less() -> None:
    """Sixteen calls a half-life ago are worth eight, and what is old yields to what is new."""
    log = calls("sql", [True] * 16, at=START)
    found = estimate(scores(count={"sql": 0.2}), log, "sql", now=START + 30 * DAY)
    assert found.tally.effective == pytest.approx(8)
    assert found.score == pytest.approx((0.8 + 8) / 12)
    changed = log + calls("sql", [False] * 16, first=16, at=START + 90 * DAY)
    assert estimate(scores(count={"sql": 0.2}), changed, "sql").tally.rate == pytest.approx(2 / 18)


def test_little_evidence_moves_nothing() -> None:
    """Below the minimum a score stays exactly what it was, and so does one that the evidence agrees with."""
    static = scores(count={"sql": 0.2, "grep": 0.5, "never": 0.9})
    log = calls("sql", [True] * 7, at=START) + calls("grep", [True, False] * 20, first=100, at=START)
    for target in ("sql", "grep", "never"):
        found = estimate(static, log, target)
        assert (found.moved, found.score) == (False, static.score("call", "count", target))
    assert estimate(static, log, "sql", Parameters(min_evidence=7)).moved


def test_what_says_nothing_of_the_tool_does_not_count() -> None:
    """Cancelled, refused and unavailable calls are no evidence, and a tool that the graph does not know adds no edge."""
    log = [execution(number, outcome=outcome) for number, outcome in enumerate(["cancelled", "refused", "unavailable"] * 20)]
    log += calls("unknown", [True] * 20, first=100)
    found = estimate(scores(count={"sql": 0.2}), log, "sql")
    assert (found.tally.count, found.moved) == (0, False)


def confounded(seed: int) -> tuple[list, float]:
    """A log in which a tool is shown more often where it is easy to succeed, and its true rate of success."""
    draw = random.Random(seed)
    log = []
    for number in range(4000):
        easy = draw.random() < 0.5
        propensity = 0.9 if easy else 0.15
        if draw.random() < propensity:
            good = draw.random() < (0.9 if easy else 0.3)
            log.append(execution(number, outcome="success" if good else "failure", at=START, shown={"sql": propensity}))
    return log, 0.6


@pytest.mark.parametrize("seed", range(5))
def test_weights_undo_what_was_shown_more_often(seed: int) -> None:
    """With logged propensities the estimate is near the truth; without them it is near what was shown; clipping lies between."""
    log, truth = confounded(seed)
    static = scores(count={"sql": 0.5})
    weighted = estimate(static, log, "sql").score
    clipped = estimate(static, log, "sql", Parameters(clip=2)).score
    plain = estimate(static, log, "sql", Parameters(clip=1)).score
    assert weighted == pytest.approx(truth, abs=0.05)
    assert plain > truth + 0.15
    assert weighted < clipped < plain


def test_uneven_weights_are_worth_less() -> None:
    """The effective sample size is Kish's: weights 1 and 10, five of each, are worth 55² / 505."""
    log = calls("sql", [True] * 5, at=START, shown={"sql": 1.0}) + calls("sql", [True] * 5, first=5, at=START, shown={"sql": 0.01})
    assert estimate(scores(count={"sql": 0.5}), log, "sql").tally.effective == pytest.approx(55**2 / 505)


def walks(*targets: str, shown: dict[str, float] | None = None, first: int = 0) -> list:
    """Episodes of two actions: from ``a`` to each target."""
    made = []
    for number, target in enumerate(targets, first):
        made.append(execution(number, id=f"{number}-0", action="a", next_shown=shown or {}, at=START))
        made.append(execution(number, id=f"{number}-1", action=target, position=1, at=START))
    return made


def next_row(static: Scores, log: list) -> dict[str, float]:
    """The estimates of the action ``a``'s successors."""
    found = estimates(static, tallied(episodes(log), PARAMETERS, START), PARAMETERS)
    return {each.edge.target: each.score for each in found["next"]["a"]}


def test_next_scores_are_shares_on_the_static_scale() -> None:
    """The most frequent successor gets the greatest static score and the others theirs in proportion, after a prior worth eight."""
    static = scores(count={}, nexts={"a": {"b": 0.8, "c": 0.8}})
    found = next_row(static, walks(*["b"] * 6 + ["c"] * 26))
    assert found == pytest.approx({"c": 0.8, "b": 0.8 * (4 + 6) / (4 + 26)})
    assert next_row(static, walks(*["b"] * 2 + ["c"] * 4)) == {"b": 0.8, "c": 0.8}
    assert next_row(scores(nexts={"a": {"b": 0.0}}), walks(*["b"] * 50)) == {"b": 0.0}


def test_a_successor_that_was_rarely_shown_is_not_rare() -> None:
    """Ten transitions to what was shown once in five times weigh like fifty to what was always shown."""
    static = scores(nexts={"a": {"b": 0.9, "c": 0.9, "d": 0.9}})
    log = walks(*["b"] * 50 + ["c"] * 10, shown={"b": 1.0, "c": 0.2, "d": 1.0})
    found = next_row(static, log)
    assert found["b"] == pytest.approx(found["c"]) == pytest.approx(0.9)
    assert found["d"] < 0.2


def test_calls_in_a_row_are_one_visit() -> None:
    """A transition is a change of action; trying again within an action is none."""
    again = [execution(number, id=f"x{number}", episode="e", position=number, action=action) for number, action in enumerate("aabba")]
    (episode,) = episodes(again[::-1])
    assert [(each.source, each.target) for each in episode.transitions()] == [("a", "b"), ("b", "a")]


def rows() -> st.SearchStrategy[list[Estimate]]:
    """Rows of estimates, some of which moved."""
    one = st.tuples(st.integers(0, 10), st.floats(0, 1), st.floats(0.1, 100), st.booleans())
    return st.lists(one, max_size=12).map(
        lambda drawn: [
            Estimate(Edge("call", "a", f"t{number}", static / 10), score if moved else static / 10, Tally(), strength, 1.0, moved)
            for number, (static, score, strength, moved) in enumerate(drawn)
        ]
    )


@pytest.mark.usefixtures("slow")
@settings(max_examples=examples(300))
@given(rows())
def test_an_order_that_is_kept_is_kept(row: list[Estimate]) -> None:
    """No two edges change places, unmoved ones stay exactly where they are, and scores stay between the estimates."""
    fitted = kept_in_order(row)
    for one, score in zip(row, fitted, strict=True):
        if not one.moved:
            assert score == one.edge.score
        for other, another in zip(row, fitted, strict=True):
            if one.edge.score < other.edge.score:
                assert score <= another + 1e-12
    if row:
        assert min(each.score for each in row) - 1e-12 <= min(fitted)
        assert max(fitted) <= max(each.score for each in row) + 1e-12


def test_parameters_out_of_bounds_are_named() -> None:
    """A wrong parameter is an error with its name in it."""
    with pytest.raises(ConfigurationError, match=r"half_life|\$\.half_life"):
        Parameters(half_life=0).checked()
    assert Parameters().checked() == Parameters()
