"""The only folder that speaks Redis; beside it the in-process broker for ``memory://``."""

from __future__ import annotations

# ruff: noqa: PLC0415 - a broker is imported when a URL asks for it: its protocols are needed by many who open none
from toolbus.broker.protocols import AgentBroker, WorkerBroker
from toolbus.settings import Settings

__all__ = ["AgentBroker", "WorkerBroker", "agent_broker", "worker_broker"]

_MEMORY = "memory:"


def agent_broker(settings: Settings) -> AgentBroker:
    """The caller's side of the broker that ``settings.url`` names.

    Raises:
        ConfigurationError: the URL can't be understood.
    """
    if settings.url.startswith(_MEMORY):
        from toolbus.broker.memory import MemoryAgentBroker

        return MemoryAgentBroker(settings)
    from toolbus.broker.agent import RedisAgentBroker

    return RedisAgentBroker(settings)


def worker_broker(settings: Settings) -> WorkerBroker:
    """The worker's side of the broker that ``settings.url`` names.

    Raises:
        ConfigurationError: the URL can't be understood.
    """
    if settings.url.startswith(_MEMORY):
        from toolbus.broker.memory import MemoryWorkerBroker

        return MemoryWorkerBroker(settings)
    from toolbus.broker.worker import RedisWorkerBroker

    return RedisWorkerBroker(settings)
