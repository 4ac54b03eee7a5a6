"""The evaluation: its figures by hand, and what it says of generated logs whose truth is known."""

from __future__ import annotations

import statistics

import pytest

from tests.learning.samples import execution, scores
from toolbus import ConfigurationError
from toolbus.toolkit.learning import Evaluation, Options, Parameters, episodes, evaluate
from toolbus.toolkit.learning.evaluate import Comparison, Figure, Step, by_words, flat
from toolbus.toolkit.learning.generated import World, generate

QUICK = Options(resamples=200)


def measured(seed: int, **world: object) -> Evaluation:
    """The evaluation of a generated log."""
    made = generate(World(seed=seed, **world))  # type: ignore[arg-type]
    return evaluate(made.static, made.texts, episodes(made.executions), Parameters(), QUICK)


def compared(found: Evaluation, measure: str) -> Comparison:
    """Learned against static scores."""
    return next(each for each in found.comparisons if each.measure == measure)


def figure(found: Evaluation, policy: str, measure: str) -> float:
    """A policy's value of one measure."""
    value = next(each for each in found.tools if each.policy == policy).figures[measure].value
    assert value is not None
    return value


@pytest.mark.usefixtures("slow")
def test_learned_scores_beat_static_ones() -> None:
    """Over ten seeds hit@3 rises by 20 % and more on average, with an interval over seeds above that; no seed is credibly worse."""
    gains = []
    for seed in range(10):
        found = measured(seed)
        gain = compared(found, "hit@3")
        assert gain.difference.high is not None
        assert gain.difference.high >= 0
        assert gain.relative.value is not None
        gains.append(gain.relative.value)
    # Student's t with 9 degrees of freedom, one-sided 97.5 %.
    margin = 2.262 * statistics.stdev(gains) / len(gains) ** 0.5
    assert statistics.mean(gains) - margin > 0.2


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_one_log_is_enough_to_tell(seed: int) -> None:
    """On single logs the interval of the difference excludes 0, and scores are better calibrated."""
    found = measured(seed)
    gain = compared(found, "hit@3")
    assert gain.difference.low is not None
    assert gain.difference.low > 0
    static, learned = (next(each for each in found.tools if each.policy == name) for name in ("static", "learned"))
    assert static.ece is not None
    assert learned.ece is not None
    assert learned.ece < static.ece / 2


@pytest.mark.usefixtures("slow")
def test_nothing_is_lost_on_noise() -> None:
    """Over twenty seeds of pure noise no measure of any log is credibly worse than with static scores."""
    for seed in range(20):
        comparisons = measured(seed, noise=True, episodes=300).comparisons
        assert comparisons
        for each in comparisons:
            assert each.difference.high is not None
            assert each.difference.high >= 0, (seed, each)


@pytest.mark.usefixtures("slow")
def test_nothing_is_lost_where_static_scores_are_right() -> None:
    """With static scores near the truth there is nothing to win, and nothing is lost."""
    for seed in range(5):
        gain = compared(measured(seed, wrong=0.0), "hit@3")
        assert gain.difference.high is not None
        assert gain.difference.high >= 0


@pytest.mark.usefixtures("slow")
def test_learned_scores_come_near_the_best_possible() -> None:
    """Ranking by learned scores is within a sixth of ranking by the truth."""
    for seed in (0, 1, 3):
        made = generate(World(seed=seed))
        best = evaluate(made.truth, made.texts, episodes(made.executions), Parameters(guard=0.999999), QUICK)
        assert figure(measured(seed), "learned", "hit@3") > figure(best, "static", "hit@3") * 5 / 6


def test_figures_by_hand() -> None:
    """Hits, ranks, reach, shown tools and calibration of two held-out episodes are what a pencil gives."""
    static = scores(count={"a": 0.9, "b": 0.6, "c": 0.5, "d": 0.2}, nexts={"count": {"x": 0.9, "y": 0.3}}, x={"a": 0.75})
    shown = {"a": 1.0, "d": 0.25}
    held_out = [
        execution(2, id="1", episode="p", action="count", tool="a", shown=shown),
        execution(2, id="2", episode="p", position=1, action="count", tool="b", outcome="failure"),
        execution(2, id="3", episode="p", position=2, action="x", tool="a"),
        execution(3, id="4", episode="q", action="count", tool="d", shown=shown, query="delta"),
        execution(3, id="5", episode="q", position=1, action="y", tool="a", outcome="cancelled"),
    ]
    log = [execution(0), execution(1), *held_out]
    found = evaluate(static, {"d": "delta"}, episodes(log), Parameters(), Options(held_out=0.5))
    # Successes: a in count (weight 1, rank 1), a in x (weight 1, rank 1), d in count (weight 4, rank 4).
    by_hand = {"hit@1": 2 / 6, "hit@3": 2 / 6, "hit@5": 1.0, "mrr": (1 + 1 + 4 / 4) / 6, "reach": 2 / 6, "tools shown": (3 + 1 + 3 + 0) / 4}
    by_hand["brier"] = ((0.9 - 1) ** 2 + (0.6 - 0) ** 2 + (0.75 - 1) ** 2 + (0.2 - 1) ** 2) / 4
    standing = next(each for each in found.tools if each.policy == "static")
    assert {name: each.value for name, each in standing.figures.items()} == pytest.approx(by_hand, abs=1e-6)
    assert standing.ece == pytest.approx((0.1 + 0.6 + 0.25 + 0.8) / 4)
    assert figure(found, "BM25", "hit@1") == pytest.approx(4 / 6)
    assert figure(found, "flat list", "tools shown") == 4
    assert figure(found, "static + BM25", "mrr") == pytest.approx((1 + 1 + 4 / 1) / 6)
    assert found.actions[0].figures["next hit@1"].value == pytest.approx(1 / 2)
    assert (found.learned_from, found.held_out, found.calls, found.transitions) == (2, 2, 3, 2)


def test_the_same_seed_gives_the_same_evaluation() -> None:
    """Evaluations are reproducible, intervals included."""
    assert measured(5, episodes=60) == measured(5, episodes=60)


def test_too_little_to_evaluate_is_an_error() -> None:
    """One episode can't be split, and without call edges there is nothing to compare; nothing measured is shown as such."""
    with pytest.raises(ConfigurationError, match="can't be split"):
        evaluate(scores(count={"sql": 0.5}), {}, episodes([execution()]), Parameters())
    with pytest.raises(ConfigurationError, match="no call edges"):
        evaluate(scores(), {}, episodes([execution(number) for number in range(4)]), Parameters())
    failed = [execution(number, outcome="failure") for number in range(4)]
    found = evaluate(scores(count={"sql": 0.5}), {}, episodes(failed), Parameters())
    assert compared(found, "hit@3").difference == Figure(None, None, None)
    assert str(compared(found, "hit@3").difference) == "-"


def test_policies_without_a_graph() -> None:
    """The flat list offers everything; BM25 what the sentence's words match."""
    step = Step("count", "orders of March")
    assert flat(["b", "a"]).order(step) == ["a", "b"]
    assert by_words({"a": "count orders", "b": "weather"}).order(step) == ["a"]
