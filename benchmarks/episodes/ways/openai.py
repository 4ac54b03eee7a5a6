"""Turns by ``toolbus.adapters.openai.chat``."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import DONE, chat_call, client, text_of
from benchmarks.episodes.ways.every import MOST_TURNS, executor_of
from toolbus.adapters.openai import chat
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)

    async def answer(body: dict[str, Any]) -> dict[str, Any]:
        said = {each["tool_call_id"]: text_of(each["content"]) for each in body["messages"] if each["role"] == "tool"}
        calls = [chat_call(call) for call in await player.answer(said)]
        message = {"role": "assistant", "content": None, "tool_calls": calls} if calls else {"role": "assistant", "content": DONE}
        choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
        return {"id": "x", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}

    async with AsyncOpenAI(base_url="http://scripted", api_key="none", http_client=client(DefaultAsyncHttpxClient, answer)) as model:
        await chat(model, executor, [{"role": "user", "content": "Go."}], max_turns=MOST_TURNS)
