"""The only folder that speaks Redis; beside it the in-process broker for ``memory://``."""

from __future__ import annotations

from toolbus.broker.memory import MemoryAgentBroker, MemoryWorkerBroker
from toolbus.broker.protocols import AgentBroker, WorkerBroker
from toolbus.broker.redis_agent import RedisAgentBroker
from toolbus.broker.redis_worker import RedisWorkerBroker
from toolbus.settings import Settings

__all__ = ["AgentBroker", "WorkerBroker", "agent_broker", "worker_broker"]

_MEMORY = "memory:"


def agent_broker(settings: Settings) -> AgentBroker:
    """The caller's side of the broker that ``settings.url`` names.

    :raises ConfigurationError: the URL can't be understood.
    """
    return MemoryAgentBroker(settings) if settings.url.startswith(_MEMORY) else RedisAgentBroker(settings)


def worker_broker(settings: Settings) -> WorkerBroker:
    """The worker's side of the broker that ``settings.url`` names.

    :raises ConfigurationError: the URL can't be understood.
    """
    return MemoryWorkerBroker(settings) if settings.url.startswith(_MEMORY) else RedisWorkerBroker(settings)
