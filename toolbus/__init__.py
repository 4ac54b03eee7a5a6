"""toolbus: a distributed pool of tool workers for LLM agents, over Redis Streams.

Each name is imported when it is first asked for: what only looks at a tool file, or prints help, need not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolbus.client.bus import ToolBus
    from toolbus.client.calls.call import Call
    from toolbus.client.confirmations.confirmation import Confirmation
    from toolbus.client.executor.executor import ToolExecutor
    from toolbus.client.executor.observers import Confirming, Requested, ToolEvent
    from toolbus.client.executor.turn import Turn
    from toolbus.client.tools.tool import Tool, ToolChange
    from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
    from toolbus.events import Answered, Asked, Event, Finished, Reset, Started, Text
    from toolbus.local import ToolRegistry
    from toolbus.options import CallOptions
    from toolbus.results import (
        Blob,
        BrokerError,
        BrokerUnavailable,
        CallCancelled,
        ConfigurationError,
        ConfirmationClosed,
        DescriptorError,
        EnvelopeError,
        ErrorInfo,
        Progress,
        RegistrationRefused,
        ResultMeta,
        StreamReset,
        ToolbusError,
        ToolError,
        ToolResult,
        UnsupportedServer,
    )
    from toolbus.settings import Settings
    from toolbus.worker.definition.function import tool
    from toolbus.worker.definition.provide import provide
    from toolbus.worker.definition.retry import Retry
    from toolbus.worker.definition.service import ToolService
    from toolbus.worker.loading.modules import init_tools
    from toolbus.worker.run.invocation import Invocation, invocation
    from toolbus.worker.sessions.session import Session
    from toolbus.worker.worker import Worker

__all__ = [
    "Answered",
    "Asked",
    "Blob",
    "BrokerError",
    "BrokerUnavailable",
    "Call",
    "CallCancelled",
    "CallOptions",
    "ConfigurationError",
    "Confirmation",
    "ConfirmationAnswer",
    "ConfirmationClosed",
    "ConfirmationRequest",
    "Confirming",
    "DescriptorError",
    "EnvelopeError",
    "ErrorInfo",
    "Event",
    "Finished",
    "Invocation",
    "Progress",
    "RegistrationRefused",
    "Requested",
    "Reset",
    "ResultMeta",
    "Retry",
    "Session",
    "Settings",
    "Started",
    "StreamReset",
    "Text",
    "Tool",
    "ToolBus",
    "ToolChange",
    "ToolError",
    "ToolEvent",
    "ToolExecutor",
    "ToolRegistry",
    "ToolResult",
    "ToolService",
    "ToolbusError",
    "Turn",
    "UnsupportedServer",
    "Worker",
    "init_tools",
    "invocation",
    "provide",
    "tool",
]

_HOMES = {
    "toolbus.client.bus": ("ToolBus",),
    "toolbus.client.calls.call": ("Call",),
    "toolbus.client.confirmations.confirmation": ("Confirmation",),
    "toolbus.events": ("Answered", "Asked", "Event", "Finished", "Reset", "Started", "Text"),
    "toolbus.client.executor.executor": ("ToolExecutor",),
    "toolbus.client.executor.observers": ("Confirming", "Requested", "ToolEvent"),
    "toolbus.client.tools.tool": ("Tool", "ToolChange"),
    "toolbus.client.executor.turn": ("Turn",),
    "toolbus.confirmations": ("ConfirmationAnswer", "ConfirmationRequest"),
    "toolbus.local": ("ToolRegistry",),
    "toolbus.options": ("CallOptions",),
    "toolbus.results": (
        "Blob",
        "BrokerError",
        "BrokerUnavailable",
        "CallCancelled",
        "ConfigurationError",
        "ConfirmationClosed",
        "DescriptorError",
        "EnvelopeError",
        "ErrorInfo",
        "Progress",
        "RegistrationRefused",
        "ResultMeta",
        "StreamReset",
        "ToolbusError",
        "ToolError",
        "ToolResult",
        "UnsupportedServer",
    ),
    "toolbus.settings": ("Settings",),
    "toolbus.worker.definition.service": ("ToolService",),
    "toolbus.worker.definition.function": ("tool",),
    "toolbus.worker.run.invocation": ("Invocation", "invocation"),
    "toolbus.worker.loading.modules": ("init_tools",),
    "toolbus.worker.definition.provide": ("provide",),
    "toolbus.worker.definition.retry": ("Retry",),
    "toolbus.worker.sessions.session": ("Session",),
    "toolbus.worker.worker": ("Worker",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
