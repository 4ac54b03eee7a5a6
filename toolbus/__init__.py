"""toolbus: a distributed pool of tool workers for LLM agents, over Redis Streams.

The names below are those that most programs need. The others are in submodules:

- ``toolbus.bus.values.events``: ``Event`` and its kinds, which ``Call.events()`` yields.
- ``toolbus.bus.values.results``: every exception, and ``ResultMeta``.
- ``toolbus.bus.values.options``: ``CallOptions``.
- ``toolbus.bus.values.confirmations``: ``ConfirmationRequest`` and ``ConfirmationAnswer``.
- ``toolbus.bus.client.confirmations``: ``Confirmation``.
- ``toolbus.bus.client.tools.tool``: ``Tool`` and ``ToolChange``.
- ``toolbus.bus.client.executor.executor``: ``ToolExecutor``.
- ``toolbus.bus.client.executor.turn``: ``Turn``.
- ``toolbus.bus.client.executor.toolcalls``: ``ModelCall``.
- ``toolbus.bus.client.executor.observers``: ``ToolEvent``, ``Requested`` and ``Confirming``.

``toolbus.sync``, ``.middleware``, ``.agent``, ``.adapters``, ``.testing`` and ``.toolkit`` have names of their own.
Each name is imported when it is first used, so that reading a tool file or printing help does not load the rest.
"""

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily

if TYPE_CHECKING:
    from toolbus.bus.client.bus import ToolBus
    from toolbus.bus.client.calls.call import Call
    from toolbus.bus.local import ToolRegistry
    from toolbus.bus.values.results import Blob, BrokerError, ConfigurationError, ErrorInfo, Progress, ToolbusError, ToolError, ToolResult
    from toolbus.bus.values.settings import Settings
    from toolbus.bus.worker.function import tool
    from toolbus.bus.worker.invocation import Invocation, invocation
    from toolbus.bus.worker.loading import init_tools
    from toolbus.bus.worker.provide import provide
    from toolbus.bus.worker.service import Retry, Session, ToolService
    from toolbus.bus.worker.worker import Worker

__all__ = [
    "Blob",
    "BrokerError",
    "Call",
    "ConfigurationError",
    "ErrorInfo",
    "Invocation",
    "Progress",
    "Retry",
    "Session",
    "Settings",
    "ToolBus",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolService",
    "ToolbusError",
    "Worker",
    "init_tools",
    "invocation",
    "provide",
    "tool",
]

_HOMES = {
    "toolbus.bus.client.bus": ("ToolBus",),
    "toolbus.bus.client.calls.call": ("Call",),
    "toolbus.bus.local": ("ToolRegistry",),
    "toolbus.bus.values.results": (
        "Blob",
        "BrokerError",
        "ConfigurationError",
        "ErrorInfo",
        "Progress",
        "ToolbusError",
        "ToolError",
        "ToolResult",
    ),
    "toolbus.bus.values.settings": ("Settings",),
    "toolbus.bus.worker.service": ("ToolService", "Retry", "Session"),
    "toolbus.bus.worker.function": ("tool",),
    "toolbus.bus.worker.invocation": ("Invocation", "invocation"),
    "toolbus.bus.worker.loading": ("init_tools",),
    "toolbus.bus.worker.provide": ("provide",),
    "toolbus.bus.worker.worker": ("Worker",),
}

__getattr__, __dir__ = lazily(globals(), _HOMES)
