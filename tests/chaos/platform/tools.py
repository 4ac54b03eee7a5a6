"""Recorded tools of every effect, each with a program that notes the calls that it runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from tests.host.programs import recorded
from toolbus.platform.records import RecordedTool

EFFECTS = {"plain": "", "reader": "read", "setter": "idempotent", "payer": "once", "streamer": "read", "alone": "read", "crowd": "read"}
"""The tools, and what a second run of each would do."""

_STREAMED = "0,1,2,"


def records(folder: Path) -> list[RecordedTool]:
    """Write the programs, and return the records of their tools."""
    running: dict[str, dict[str, Any]] = {
        "alone": {"single": True},
        "crowd": {"instances": 2, "concurrency": 2},
        "reader": {"keep_warm": 1},
        "plain": {"idle_stop": 1.0},
    }
    quick = {"health_every": 1.0, "stop_within": 1.0}
    return [
        recorded(folder / tool, tool, stream=tool == "streamer", effect=effect, **{**quick, **running.get(tool, {})})
        for tool, effect in EFFECTS.items()
    ]


class Planned(msgspec.Struct, frozen=True):
    """A call, by its number."""

    number: int
    tool: str
    arguments: dict[str, Any]

    def is_answer(self, output: str | None, data: Any) -> bool:
        """Return whether a result is that of this call."""
        return output == _STREAMED if self.tool == "streamer" else isinstance(data, dict) and data.get("number") == self.number


def planned(number: int, chance: random.Random, notes: Path) -> Planned:
    """Return a call to one of the tools, which its program writes into ``notes`` when it begins to run it."""
    tool = chance.choice(list(EFFECTS))
    arguments: dict[str, Any] = {"number": number, "note": str(notes)}
    if tool == "streamer":
        arguments["do"] = "stream"
    elif chance.random() < 0.3:
        arguments |= {"do": "sleep", "seconds": round(chance.uniform(0.01, 0.5), 3)}
    return Planned(number, tool, arguments)
