"""An agent that calls tools of a bus through any OpenAI-compatible endpoint (``toolbus[agent]``).

Each name is imported when it is first used, so that the messenger, which asks no model, needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily

if TYPE_CHECKING:
    from toolbus.agent.endpoint import OPENAI, ChatEndpoint
    from toolbus.agent.history import Answer, Memory
    from toolbus.agent.loop import MAX_SECONDS, MAX_TURNS, SYSTEM, Agent, AgentEvent, ModelText, Retrying
    from toolbus.bus.values.results import EndpointError

__all__ = [
    "MAX_SECONDS",
    "MAX_TURNS",
    "OPENAI",
    "SYSTEM",
    "Agent",
    "AgentEvent",
    "Answer",
    "ChatEndpoint",
    "EndpointError",
    "Memory",
    "ModelText",
    "Retrying",
]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.agent.endpoint": ("OPENAI", "ChatEndpoint"),
        "toolbus.agent.history": ("Answer", "Memory"),
        "toolbus.agent.loop": ("MAX_SECONDS", "MAX_TURNS", "SYSTEM", "Agent", "AgentEvent", "ModelText", "Retrying"),
        "toolbus.bus.values.results": ("EndpointError",),
    },
)
