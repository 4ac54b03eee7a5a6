"""Write episodes by seed, and find out their answers by running the same classes in this process."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from benchmarks.episodes.worlds.every import WORLDS
from benchmarks.episodes.worlds.world import World
from toolbus import ToolError

SERVICES = (2, 3)
TURNS = (3, 5)
CALLS = (3, 7)


@dataclass(frozen=True)
class Call:
    """A call of a model, and the answer that it must get.

    Attributes:
        served: the calls that the session made to each service before this one.
        refusal: the message with which the state refuses the call; empty when it does not.
    """

    id: str
    service: str
    tool: str
    arguments: dict[str, Any]
    served: dict[str, int]
    value: Any = None
    refusal: str = ""


@dataclass(frozen=True)
class Episode:
    """The turns of one session; the last one audits every service."""

    session: str
    services: tuple[str, ...]
    turns: tuple[tuple[Call, ...], ...]

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(len(turn) for turn in self.turns)


def episodes(count: int, seed: int) -> list[Episode]:
    """Return episodes; the same for a seed on every machine."""
    return [_episode(f"episode-{seed}-{number}") for number in range(count)]


def _episode(session: str) -> Episode:
    chance = random.Random(session)
    names = tuple(sorted(chance.sample(sorted(WORLDS), chance.choice(SERVICES))))
    worlds = {name: WORLDS[name](session) for name in names}
    turns = []
    for turn in range(chance.randint(*TURNS)):
        calls: list[Call] = []
        wanted = chance.randint(*CALLS)
        while len(calls) < wanted:
            # Most calls go to the service of the one before, so that their order matters.
            name = calls[-1].service if calls and chance.random() < 0.75 else chance.choice(names)
            tool, arguments = worlds[name]._next(chance)
            calls.append(_made(f"t{turn}c{len(calls)}", worlds, name, tool, arguments))
        turns.append(tuple(calls))
    audits = [_made(f"a{index}", worlds, name, WORLDS[name].audit_tool(), {}) for index, name in enumerate(names)]
    return Episode(session, names, (*turns, tuple(audits)))


def _made(id: str, worlds: dict[str, World], name: str, tool: str, arguments: dict[str, Any]) -> Call:
    served = {each: world.served for each, world in worlds.items()}
    try:
        value = worlds[name]._call(tool, json.loads(json.dumps(arguments)))
    except ToolError as error:
        return Call(id, name, tool, arguments, served, refusal=error.error.message)
    return Call(id, name, tool, arguments, served, value=json.loads(json.dumps(value)))
