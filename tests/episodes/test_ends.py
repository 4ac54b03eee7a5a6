"""Episodes whose workers end: the model is told, or nothing is lost."""

from __future__ import annotations

import pytest

from benchmarks.episodes.measure import Plan, measure
from benchmarks.episodes.script import episodes

pytestmark = pytest.mark.anyio

EPISODES = 4


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("signal", "lost"), [("KILL", ""), ("TERM", ""), ("KILL", "restore")])
async def test_lost_state_is_told(signal: str, lost: str, server: str) -> None:
    """A worker that is killed, or told to end, costs no episode its state in silence, whatever the services do about lost states."""
    plan = Plan("executor", kill_every=0.5, signal=signal, lost=lost, workers=2, pause=0.7, lease=1.0)
    outcome = await measure(plan, episodes(EPISODES, 5), server, lambda _: None)
    assert outcome.kills
    assert outcome.counts["identical"] + outcome.counts["told"] == EPISODES, outcome.details
