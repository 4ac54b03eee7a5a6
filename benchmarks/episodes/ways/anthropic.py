"""Turns by ``toolbus.adapters.anthropic.converse``."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import DONE, client, text_of
from benchmarks.episodes.ways.every import MOST_TURNS, executor_of
from toolbus.adapters.anthropic import converse
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)

    async def answer(body: dict[str, Any]) -> dict[str, Any]:
        blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
        said = {block["tool_use_id"]: text_of(block["content"]) for block in blocks if block["type"] == "tool_result"}
        calls = await player.answer(said)
        content: list[dict[str, Any]] = [{"type": "tool_use", "id": each.id, "name": each.tool, "input": each.arguments} for each in calls]
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {
            "id": "m", "type": "message", "role": "assistant", "model": "scripted", "usage": usage,
            "content": content or [{"type": "text", "text": DONE}], "stop_reason": "tool_use" if content else "end_turn",
        }  # fmt: skip

    async with AsyncAnthropic(base_url="http://scripted", api_key="none", http_client=client(DefaultAsyncHttpxClient, answer)) as model:
        await converse(model, executor, [{"role": "user", "content": "Go."}], max_turns=MOST_TURNS)
