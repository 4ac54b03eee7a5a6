"""``toolbus.sync.ToolBus``: everything that a bus does for synchronous callers, over one event loop in a thread."""

from __future__ import annotations

from toolbus.sync.bus import ToolBus
from toolbus.sync.confirmations import Confirmation, Confirmer, PendingConfirmations
from toolbus.sync.executor import ToolExecutor, Turn
from toolbus.sync.loop import Call
from toolbus.sync.observers import EventBus, Watch
from toolbus.sync.tools import Tools
from toolbus.sync.views import BoundBus, Service

__all__ = [
    "BoundBus",
    "Call",
    "Confirmation",
    "Confirmer",
    "EventBus",
    "PendingConfirmations",
    "Service",
    "ToolBus",
    "ToolExecutor",
    "Tools",
    "Turn",
    "Watch",
]
