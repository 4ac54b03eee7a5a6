"""An agent that calls tools of a bus through any OpenAI-compatible endpoint (``toolbus[agent]``)."""

from toolbus.agent.endpoint import OPENAI, ChatEndpoint
from toolbus.agent.exchange import Answer
from toolbus.agent.loop import MAX_SECONDS, MAX_TURNS, SYSTEM, Agent, AgentEvent, ModelText, Retrying
from toolbus.agent.memory import Memory
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
