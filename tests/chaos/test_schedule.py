"""The schedule of faults follows from the seed, and keeps its own rules."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.chaos.faults import Faults
from tests.chaos.schedule import DEFAULT, KINDS, schedule


def test_the_schedule_is_the_seeds() -> None:
    """The same seed gives the same faults, another seed others."""
    one, same, other = (schedule(seed, 300.0, DEFAULT, lease=2.0) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_five_minutes_kill_two_hundred_workers() -> None:
    """A default run has at least 200 kills, and every kind of fault that has a rate."""
    counts = Counter(fault.kind for fault in schedule(1, 300.0, DEFAULT, lease=2.0))
    assert counts["kill"] >= 200
    assert set(counts) == {kind for kind in DEFAULT if KINDS[kind].per_minute}


def test_faults_fall_within_the_run_in_order() -> None:
    """Faults come in order of time, between the start and the end."""
    times = [fault.at for fault in schedule(3, 60.0, KINDS, lease=2.0, intensity=2.0)]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 60


@pytest.mark.parametrize("seed", range(20))
def test_outages_never_add_up(seed: int) -> None:
    """A fault that silences an agent or the server ends before the next such fault begins."""
    outages = [fault for fault in schedule(seed, 300.0, KINDS, lease=2.0, intensity=5.0) if KINDS[fault.kind].outage]
    assert len(outages) > 20
    for one, following in itertools.pairwise(outages):
        assert one.at + one.lasts < following.at


def test_every_kind_can_be_applied() -> None:
    """Each kind that has a rate has its method."""
    for name, kind in KINDS.items():
        if kind.per_minute:
            assert hasattr(Faults, f"_{name.replace('-', '_')}")
