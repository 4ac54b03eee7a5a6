"""Turns by ``process_tool_calls``, in the form of chat completions."""

from __future__ import annotations

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import chat_call
from benchmarks.episodes.ways.every import executor_of
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)
    said: dict[str, str] = {}
    while calls := await player.answer(said):
        answers = await executor.process_tool_calls({"role": "assistant", "tool_calls": [chat_call(call) for call in calls]})
        said = {each["tool_call_id"]: each["content"] for each in answers}
