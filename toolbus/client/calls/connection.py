"""``BusConnection``: the state of a bus between its opening and its close."""

from __future__ import annotations

import asyncio
import os
import threading

from toolbus.broker import AgentBroker, agent_broker
from toolbus.client.calls.timers import CallTimers
from toolbus.client.tools.catalogue import Catalogue
from toolbus.client.tools.view import ToolView
from toolbus.deadlines import Deadlines
from toolbus.results import ErrorInfo
from toolbus.settings import Settings

# The number of forks above this process, since asking for the pid at each call cost 6 % of a caller's time.
process_forks = [0]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: process_forks.__setitem__(0, process_forks[0] + 1))


class BusConnection:
    """The state from one opening of a bus to its close; only the event loop, thread and process that opened it may use it.

    Attributes:
        is_open: False before the registry's snapshot is loaded, and after the close.
        failure: why nothing arrives any more, or None.
    """

    __slots__ = ("agent", "broker", "catalogue", "deadlines", "failure", "forks", "is_open", "loop", "thread", "timers", "tools")

    def __init__(self, settings: Settings) -> None:
        self.loop, self.thread, self.forks = asyncio.get_running_loop(), threading.get_ident(), process_forks[0]
        self.deadlines = Deadlines(self.loop)
        self.catalogue = Catalogue(require_approval=settings.require_approval)
        self.tools = ToolView(self.catalogue)
        self.broker: AgentBroker = agent_broker(settings)
        self.agent = self.broker.agent
        self.timers = CallTimers(self.deadlines, settings.lease, lambda: bool(self.broker.statistics().get("connected", 1)))
        self.failure: ErrorInfo | None = None
        self.is_open = False
