"""Turns by an agent of Pydantic AI."""

from __future__ import annotations

from pydantic_ai import Agent, ModelMessage, ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import DONE
from benchmarks.episodes.ways.every import MOST_TURNS, executor_of
from toolbus.adapters.pydantic_ai import BusToolset
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        said = {part.tool_call_id: part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)}
        said |= {part.tool_call_id: part.model_response() for part in parts if isinstance(part, RetryPromptPart)}
        calls = await player.answer(said)
        return ModelResponse([ToolCallPart(each.tool, each.arguments, each.id) for each in calls] or [TextPart(DONE)])

    agent = Agent(FunctionModel(model), toolsets=[BusToolset(executor)])
    await agent.run("Go.", usage_limits=UsageLimits(request_limit=MOST_TURNS))
