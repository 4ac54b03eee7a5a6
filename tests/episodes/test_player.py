"""The judge of an episode: identical, told, wrong and unfinished are told apart."""

from __future__ import annotations

import json

import pytest

from benchmarks.episodes.player import Player
from benchmarks.episodes.script import Call, episodes
from benchmarks.episodes.worlds.every import WORLDS

pytestmark = pytest.mark.anyio

LOST = "Error (tool_error): the session was lost when its worker ended\nNext: …"
UNKNOWN = "Error (outcome_unknown): the worker ended while the call ran\nNext: …"
REFUSED = "Error (tool_error): refused: no such entry\nNext: …"


def right(call: Call) -> str:
    """Return the answer that a call must get."""
    if call.refusal:
        return f"Error (tool_error): {call.refusal}\nNext: …"
    return call.value if isinstance(call.value, str) else json.dumps(call.value)


async def verdict(change: str | None, served: int = 1_000) -> str:
    """Play an episode whose second turn begins with a changed answer, and return the judgement."""
    player = Player(episodes(1, 3)[0])
    said: dict[str, str] = {}
    turn = 0
    while calls := await player.answer(said):
        said = {call.id: json.dumps({"served": served}) if call.id.startswith("p") else right(call) for call in calls}
        if change is not None and turn == 1:
            said[calls[0].id] = change
        turn += 1
    return player.verdict


@pytest.mark.parametrize(
    ("change", "served", "judged"),
    [
        (None, 0, "identical"),
        (LOST, 0, "told"),
        ("[What was done in this session before is lost. This call ran in a new one.]\n4", 0, "told"),
        (UNKNOWN, 1_000, "told"),
        (UNKNOWN, 0, "wrong"),
        (REFUSED, 1_000, "wrong"),
        ("another answer", 1_000, "wrong"),
    ],
)
async def test_answers_are_judged(change: str | None, served: int, judged: str) -> None:
    """A failure of toolbus's own is told unless an audit finds state gone in silence; another answer, or refusal, is wrong."""
    assert await verdict(change, served) == judged


async def test_an_episode_that_stops_early_is_unfinished() -> None:
    """An episode is unfinished until its last answers came, also when the way of making turns failed at the end."""
    player = Player(episodes(1, 3)[0])
    await player.answer({})
    assert player.verdict == "unfinished"
    player.verdict = "identical"
    player.fail("it broke")
    assert (player.verdict, player.detail) == ("unfinished", "it broke")


def test_audits_tell_of_the_calls() -> None:
    """An audit counts the calls before it, and its digest changes with the state."""
    world = WORLDS["calculator"]("a")
    before = world.audit()
    world._call("calculator_negate", {})
    assert (before["served"], world.audit()["served"]) == (0, 1)
    assert before["digest"] != world.audit()["digest"]
