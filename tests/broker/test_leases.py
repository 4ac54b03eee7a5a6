"""When a worker beats."""

from __future__ import annotations

import pytest

from toolbus.broker.lease.thread import until_next_beat


@pytest.mark.parametrize(("took", "rest"), [(0.0, 2.0), (0.5, 1.5), (2.0, 0.0), (7.0, 0.0)])
def test_a_late_answer_leaves_less_time_until_the_next_beat(took: float, rest: float) -> None:
    """The lease runs from when the server heard the last one, so a process that was stopped meanwhile beats at once."""
    assert until_next_beat(100.0, 100.0 + took, lease=6.0) == pytest.approx(rest)
