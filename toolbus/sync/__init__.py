"""``toolbus.sync.ToolBus``: everything that a bus does for synchronous callers, over one event loop in a thread."""

from __future__ import annotations

from toolbus.sync.bus import (
    BoundBus,
    Call,
    Confirmation,
    Confirmer,
    EventBus,
    PendingConfirmations,
    Service,
    ToolBus,
    ToolExecutor,
    Tools,
    Turn,
    Watch,
)

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
