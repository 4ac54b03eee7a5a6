"""The in-process broker behind ``memory://``: the same tools without a server, for tests and notebooks.

Everything stays in one event loop. Documents are encoded and decoded as they would be on the
wire, so that what works here works over Redis.
"""

from toolbus.bus.broker.memory.agent import MemoryAgentBroker
from toolbus.bus.broker.memory.worker import MemoryWorkerBroker

__all__ = ["MemoryAgentBroker", "MemoryWorkerBroker"]
