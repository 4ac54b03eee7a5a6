"""The episodes: the same for a seed, and hard enough that a wrong order shows."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from benchmarks.episodes.player import expected
from benchmarks.episodes.script import Call, Episode, episodes
from benchmarks.episodes.services import SERVICES
from benchmarks.episodes.worlds.every import WORLDS
from toolbus import ToolError


def replayed(episode: Episode, *, swap: bool) -> bool:
    """Run an episode's calls again, with two neighbours of one service exchanged if wanted; return whether every answer is as expected."""
    calls = [call for turn in episode.turns for call in turn]
    if swap:
        pairs = itertools.pairwise(calls)
        index = next((number for number, (one, other) in enumerate(pairs) if one.service == other.service and one.tool != other.tool), 0)
        calls[index : index + 2] = reversed(calls[index : index + 2])
    worlds = {name: WORLDS[name](episode.session) for name in episode.services}
    return all(expected(call, observed(worlds[call.service], call)) for call in calls)


def observed(world: Any, call: Call) -> str:
    """Return the observation of a call in this process."""
    try:
        value = world._call(call.tool, json.loads(json.dumps(call.arguments)))
    except ToolError as error:
        return f"Error (tool_error): {error.error.message}\nNext: …"
    return value if isinstance(value, str) else json.dumps(value)


def test_episodes_are_the_same_for_a_seed() -> None:
    """A seed writes the same episodes each time, and another seed writes others."""
    assert episodes(5, 7) == episodes(5, 7)
    assert episodes(5, 7) != episodes(5, 8)


def test_every_tool_is_called() -> None:
    """A hundred episodes call each tool of each world, and are refused now and then."""
    calls = [call for episode in episodes(100, 1) for turn in episode.turns for call in turn]
    assert {call.tool for call in calls} == {name for world in WORLDS.values() for name in world.methods()}
    assert 0.01 < sum(bool(call.refusal) for call in calls) / len(calls) < 0.2


def test_the_same_classes_give_the_expected_answers() -> None:
    """Calls in order get the expected answers; two exchanged neighbours are often noticed."""
    written = episodes(50, 2)
    assert all(replayed(episode, swap=False) for episode in written)
    assert sum(not replayed(episode, swap=True) for episode in written) >= 20


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.id)
def test_each_world_is_a_service(service: Any) -> None:
    """Each world is served with a tool for each of its methods."""
    assert set(WORLDS[service.id].methods()) <= set(dir(service))
