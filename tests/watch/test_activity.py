"""Rates and latencies from what workers answer, time after time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from toolbus.bus.broker.statistics.answers import BOUNDS, BUCKETS, InstanceAnswer, ToolStatistics, quantile
from toolbus.bus.watch.watch import Activity


def answers(uptime: float, **tools: tuple[int, int]) -> Mapping[str, InstanceAnswer]:
    """Return the answer of one worker: for each tool how many attempts ended, and how many of them failed."""
    counted = tuple(
        ToolStatistics("pool", name, failed={"tool_error": failed} if failed else {}, buckets=(count,))
        for name, (count, failed) in tools.items()
    )
    return {"w": InstanceAnswer("w", uptime=uptime, tools=counted)}


def test_a_first_sample_has_no_rates() -> None:
    """Nothing is known of the time before; latencies are those of all calls."""
    activity = Activity(10.0)
    activity.take_in(answers(100, a=(50, 0)), now=0.0)
    speed = activity.service("pool")
    assert (activity.window, speed.ended.count, speed.rates.calls_per_s) == (0.0, 50, 0.0)
    assert speed.rates.p50_ms is not None


def test_rates_are_of_the_time_between_two_samples() -> None:
    """All calls count, also of a tool that was not called before; failures count apart."""
    activity = Activity(10.0)
    activity.take_in(answers(100, a=(50, 0)), now=0.0)
    activity.take_in(answers(102, a=(70, 1), b=(4, 4)), now=2.0)
    activity.take_in(answers(104, a=(70, 1), b=(4, 4)), now=4.0)
    assert (activity.service("pool").rates.calls_per_s, activity.service("pool").rates.failures_per_s) == (6.0, 1.25)
    assert activity.instance("w") == 6.0
    assert (activity.tool("pool", "b").calls_per_s, activity.tool("pool", "b").failures_per_s) == (1.0, 1.0)


def test_what_was_before_the_window_is_forgotten() -> None:
    """A busy minute does not show long after it."""
    activity = Activity(10.0)
    for second in range(40):
        activity.take_in(answers(100 + second, a=(min(second, 5) * 100, 0)), now=float(second))
    assert activity.window == 10.0
    assert activity.service("pool").rates.calls_per_s == 0.0
    assert activity.service("pool").ended.count == 500


@pytest.mark.parametrize(("uptime", "calls_per_s"), [(1.0, 25.0), (500.0, 0.0)])
def test_a_worker_that_was_silent_has_not_done_everything_just_now(uptime: float, calls_per_s: float) -> None:
    """All that a new worker did counts; an old one that answers again counts from then on."""
    activity = Activity(10.0)
    activity.take_in({}, now=0.0)
    activity.take_in(answers(uptime, a=(50, 0)), now=2.0)
    assert activity.service("pool").rates.calls_per_s == calls_per_s


def test_a_worker_that_ends_takes_its_counts_along() -> None:
    """The speed of a quiet service is remembered only as long as the workers are the same."""
    activity = Activity(10.0)
    for second in range(15):
        activity.take_in(answers(100, a=(50, 0)), now=float(second))
    assert activity.service("pool").ended.count == 50
    activity.take_in({}, now=16.0)
    assert activity.service("pool").ended.count == 0


def test_counts_that_shrink_are_no_negative_rates() -> None:
    """Somebody answered under the worker's name."""
    activity = Activity(10.0)
    activity.take_in(answers(100, a=(50, 9)), now=0.0)
    activity.take_in(answers(101, a=(20, 1)), now=1.0)
    rates = activity.service("pool").rates
    assert rates.calls_per_s >= 0
    assert rates.failures_per_s >= 0


def test_quantiles_are_within_their_buckets() -> None:
    """They lie between the bounds of the bucket that has the call, and the last bucket has no upper bound."""
    assert quantile([], 0.5) is None
    assert quantile([0] * BUCKETS, 0.5) is None
    for at, bound in enumerate(BOUNDS):
        buckets = [0] * BUCKETS
        buckets[at] = 10
        low = BOUNDS[at - 1] if at else 0.0
        assert low < (quantile(buckets, 0.5) or 0) < (quantile(buckets, 0.99) or 0) <= bound
    assert quantile([0] * (BUCKETS - 1) + [3], 0.5) == BOUNDS[-1]
    assert (quantile([90, 0, 0, 10], 0.5) or 0) < BOUNDS[0]
    assert (quantile([90, 0, 0, 10], 0.99) or 0) > BOUNDS[2]
