"""Turns by an agent of OpenAI's Agents SDK."""

from __future__ import annotations

from functools import partial

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import client, responses
from benchmarks.episodes.ways.every import MOST_TURNS, executor_of
from toolbus.adapters.openai_agents import function_tools
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)
    http = client(DefaultAsyncHttpxClient, partial(responses, player))
    async with AsyncOpenAI(base_url="http://scripted", api_key="none", http_client=http) as model:
        agent = Agent("scripted", tools=list(function_tools(executor)), model=OpenAIResponsesModel("scripted", model))
        await Runner.run(agent, "Go.", max_turns=MOST_TURNS, run_config=RunConfig(tracing_disabled=True))
