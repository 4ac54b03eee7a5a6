"""An agent: function calling against any OpenAI-compatible endpoint, with the tools of a bus (``toolbus[agent]``)."""

from toolbus.agent.endpoint import OPENAI, ChatEndpoint
from toolbus.agent.loop import MAX_SECONDS, MAX_TURNS, SYSTEM, Agent, AgentEvent, Answer, Retrying, Said
from toolbus.results import EndpointError

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
    "Retrying",
    "Said",
]
