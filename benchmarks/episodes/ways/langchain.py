"""Turns by LangChain's tools, called together as a hand-written loop does."""

from __future__ import annotations

import asyncio

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import text_of
from benchmarks.episodes.ways.every import executor_of
from toolbus.adapters.langchain import structured_tools
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)
    tools = {each.name: each for each in structured_tools(executor)}
    said: dict[str, str] = {}
    while calls := await player.answer(said):
        messages = await asyncio.gather(
            *(tools[each.tool].ainvoke({"type": "tool_call", "id": each.id, "name": each.tool, "args": each.arguments}) for each in calls)
        )
        said = {message.tool_call_id: text_of(message.content) for message in messages}
