"""A few episodes in every way of making a turn, on workers of which each takes calls of all sessions."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

import pytest

from benchmarks.episodes.measure import Plan, judged, play_all
from benchmarks.episodes.player import Player
from benchmarks.episodes.script import episodes
from benchmarks.episodes.services import served
from benchmarks.episodes.ways.every import PACKAGES
from toolbus import ToolBus, Worker

# One process imports the frameworks once.
pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("episodes")]

WORKERS = 3
EPISODES = 3


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("way", "declared"),
    [*((way, False) for way in PACKAGES), *((way, True) for way in ("executor", "langgraph"))],
)
async def test_episodes_are_identical(way: str, declared: bool) -> None:
    """Every answer is that of the same classes in one process, with and without a declaration of order."""
    if PACKAGES[way]:
        pytest.importorskip(PACKAGES[way])
    namespace = uuid.uuid4().hex
    players = [Player(episode) for episode in episodes(EPISODES, 4)]
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(Worker(served(declared=declared), url="memory://", namespace=namespace))
        bus = await stack.enter_async_context(ToolBus("memory://", namespace=namespace))
        plan = Plan(way, declared)
        await play_all(plan, players, bus, lambda _: None)
    outcome = judged(plan, players, seconds=0, kills=0)
    assert outcome.counts == {"identical": EPISODES}, outcome.details
