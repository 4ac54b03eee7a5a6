"""Learning as a whole: what is taken from a log, what is not, and that it is the same every time."""

from __future__ import annotations

import random

import pytest

from tests.learning.samples import calls, execution, scores
from tests.tiers import some
from toolbus.toolkit.learning import Execution, Learned, Parameters, Scores, episodes, learn
from toolbus.toolkit.learning.generated import World, generate

PARAMETERS = Parameters()


def verdict(learned: Learned, kind: str) -> str:
    """Return what was taken of the edges of one kind."""
    return next(each.taken for each in learned.verdicts if each.kind == kind)


def test_the_same_log_gives_the_same_scores() -> None:
    """The order of the records makes no difference, nor does a second run."""
    made = generate(World(seed=3))
    shuffled = [*made.executions]
    random.Random(1).shuffle(shuffled)
    first = learn(made.static, episodes(made.executions), PARAMETERS)
    assert len(first.changes) > 20
    assert learn(made.static, episodes(shuffled), PARAMETERS) == first
    assert generate(World(seed=3)) == made


@pytest.mark.parametrize("seed", range(4))
def test_scores_come_near_the_truth(seed: int) -> None:
    """Scores of edges that moved are nearer to the true rates of success than the static ones, by more than half."""
    made = generate(World(seed=seed, wrong=1.0))
    moved = [each for each in learn(made.static, episodes(made.executions), PARAMETERS).changes if each.kind == "call"]
    truth = [made.truth.score("call", each.source, each.target) or 0.0 for each in moved]
    before = sum(abs(each.static - true) for each, true in zip(moved, truth, strict=True))
    after = sum(abs(each.new - true) for each, true in zip(moved, truth, strict=True))
    assert len(moved) > 20
    assert after < before / 2


@pytest.mark.parametrize("seed", some(range(5), range(20)))
def test_noise_changes_nothing(seed: int) -> None:
    """A log in which nothing depends on anything leaves every score as it was, and says so."""
    made = generate(World(seed=seed, noise=True))
    learned = learn(made.static, episodes(made.executions), PARAMETERS)
    assert learned.scores == made.static
    assert [each.why.endswith("nothing changes") for each in learned.verdicts] == [True, True]


def lone(seed: int) -> tuple[Scores, list[Execution]]:
    """Actions with one tool each, half of which nearly always fail."""
    draw = random.Random(seed)
    static = scores(**{f"action{number}": {f"tool{number}": 0.8} for number in range(6)})
    log = []
    for number in range(300):
        which = number % 6
        good = draw.random() < (0.1 if which % 2 else 0.85)
        log.append(execution(number, action=f"action{which}", tool=f"tool{which}", outcome="success" if good else "failure"))
    return static, log


def test_a_lone_tool_that_fails_loses_its_score() -> None:
    """The score of a lone tool that fails sinks: levels move where there is no order to improve, if the log tells tools apart."""
    static, log = lone(1)
    learned = learn(static, episodes(log), PARAMETERS)
    assert verdict(learned, "call") == "levels"
    assert {each.target for each in learned.changes} == {"tool1", "tool3", "tool5"}
    assert all(each.new < 0.3 and "too high with 100.0% probability" in each.why for each in learned.changes)


def test_levels_move_without_changing_places() -> None:
    """When the new order is not credibly better, no two tools of an action change places, and the reason says that they were held."""
    draw = random.Random(2)
    static, log = lone(1)
    pair = scores(**{**static.rows["call"], "both": {"first": 0.9, "second": 0.85}})
    log += calls("first", [draw.random() < 0.45 for _ in range(40)], first=1000, action="both", at=log[-1].at)
    log += calls("second", [draw.random() < 0.5 for _ in range(40)], first=2000, action="both", at=log[-1].at)
    learned = learn(pair, episodes(log), PARAMETERS)
    assert verdict(learned, "call") == "levels"
    first, second = (learned.scores.score("call", "both", name) or 0.0 for name in ("first", "second"))
    assert 0.3 < second <= first < 0.7


def test_a_short_log_changes_nothing() -> None:
    """Nineteen episodes are too few to judge by, however clear they are; an empty log is no error."""
    static = scores(count={"sql": 0.9, "grep": 0.1})
    log = calls("sql", [False] * 10) + calls("grep", [True] * 9, first=10)
    learned = learn(static, episodes(log), PARAMETERS)
    assert (learned.scores, learned.changes) == (static, [])
    assert "too few" in learned.verdicts[0].why
    assert learn(static, [], PARAMETERS).scores == static


def test_a_clear_log_turns_the_order_around() -> None:
    """A tool that succeeds overtakes one that fails, with counts and reasons."""
    static = scores(count={"sql": 0.9, "grep": 0.4, "never": 0.6})
    log = calls("sql", [False] * 60 + [True] * 6) + calls("grep", [True] * 60, first=100)
    learned = learn(static, episodes(log), PARAMETERS)
    assert verdict(learned, "call") == "all"
    assert [(each.target, each.static, each.count, each.successes) for each in learned.changes] == [
        ("grep", 0.4, 60, 60),
        ("sql", 0.9, 66, 6),
    ]
    assert "60 of 60 calls succeeded (worth 60.0, 100% weighted); the static score is too low" in learned.changes[0].why
    assert learned.scores.score("call", "count", "never") == 0.6
