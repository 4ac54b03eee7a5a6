"""Calls of a view without an executor, made together."""

from __future__ import annotations

import asyncio

from benchmarks.episodes.player import Player
from toolbus.bus.client.bus import BusView
from toolbus.bus.client.executor.observers import observe


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    said: dict[str, str] = {}
    while calls := await player.answer(said):
        results = await asyncio.gather(*(view.call(each.tool, each.arguments) for each in calls))
        said = {call.id: observe(result) for call, result in zip(calls, results, strict=True)}
