"""The only folder that speaks Redis; beside it the in-process broker for ``memory://``."""

from __future__ import annotations

# ruff: noqa: PLC0415 - a broker is imported when a URL asks for it: its protocols are needed by many who open none
from typing import cast

from toolbus.bus.broker.protocols import AgentBroker, WorkerBroker, WorkerBrokerOf
from toolbus.bus.values.settings import Settings

__all__ = ["AgentBroker", "WorkerBroker", "agent_broker", "worker_broker"]

_MEMORY = "memory:"


def agent_broker(settings: Settings) -> AgentBroker:
    """Return the caller's side of the broker that ``settings.url`` names.

    Raises:
        ConfigurationError: the URL can't be understood.
    """
    if settings.url.startswith(_MEMORY):
        from toolbus.bus.broker.memory import MemoryAgentBroker

        return MemoryAgentBroker(settings)
    from toolbus.bus.broker.agent import RedisAgentBroker

    return RedisAgentBroker(settings)


def worker_broker(settings: Settings) -> WorkerBroker:
    """Return the worker's side of the broker that ``settings.url`` names.

    Raises:
        ConfigurationError: the URL can't be understood.
    """
    if settings.url.startswith(_MEMORY):
        from toolbus.bus.broker.memory.worker import MemoryDelivery, MemoryWorkerBroker

        in_process: WorkerBrokerOf[MemoryDelivery] = MemoryWorkerBroker(settings)
        return cast("WorkerBroker", in_process)
    from toolbus.bus.broker.take.requests import StreamDelivery
    from toolbus.bus.broker.worker import RedisWorkerBroker

    over_redis: WorkerBrokerOf[StreamDelivery] = RedisWorkerBroker(settings)
    # A worker gives a broker no deliveries but those that it took from it.
    return cast("WorkerBroker", over_redis)
