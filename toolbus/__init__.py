"""toolbus: a distributed pool of tool workers for LLM agents, over Redis Streams.

The names below are those that most programs need. The others are in submodules:

- ``toolbus.events``: ``Event`` and its kinds, which ``Call.events()`` yields.
- ``toolbus.results``: every exception, and ``ResultMeta``.
- ``toolbus.options``: ``CallOptions``.
- ``toolbus.confirmations``: ``ConfirmationRequest`` and ``ConfirmationAnswer``.
- ``toolbus.client.confirmations``: ``Confirmation``.
- ``toolbus.client.tools.tool``: ``Tool`` and ``ToolChange``.
- ``toolbus.client.executor.executor``: ``ToolExecutor``.
- ``toolbus.client.executor.turn``: ``Turn``.
- ``toolbus.client.executor.toolcalls``: ``ModelCall``.
- ``toolbus.client.executor.observers``: ``ToolEvent``, ``Requested`` and ``Confirming``.

``toolbus.sync``, ``.middleware``, ``.agent``, ``.adapters``, ``.testing`` and ``.toolkit`` have names of their own.
Each name is imported when it is first used, so that reading a tool file or printing help does not load the rest.
"""

from typing import TYPE_CHECKING

from toolbus.lazy import lazily

if TYPE_CHECKING:
    from toolbus.client.bus import ToolBus
    from toolbus.client.calls.call import Call
    from toolbus.local import ToolRegistry
    from toolbus.results import Blob, BrokerError, ConfigurationError, ErrorInfo, Progress, ToolbusError, ToolError, ToolResult
    from toolbus.settings import Settings
    from toolbus.worker.definition.function import tool
    from toolbus.worker.definition.provide import provide
    from toolbus.worker.definition.service import Retry, ToolService
    from toolbus.worker.loading.modules import init_tools
    from toolbus.worker.run.invocation import Invocation, invocation
    from toolbus.worker.sessions.session import Session
    from toolbus.worker.worker import Worker

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
    "toolbus.client.bus": ("ToolBus",),
    "toolbus.client.calls.call": ("Call",),
    "toolbus.local": ("ToolRegistry",),
    "toolbus.results": (
        "Blob",
        "BrokerError",
        "ConfigurationError",
        "ErrorInfo",
        "Progress",
        "ToolbusError",
        "ToolError",
        "ToolResult",
    ),
    "toolbus.settings": ("Settings",),
    "toolbus.worker.definition.service": ("ToolService", "Retry"),
    "toolbus.worker.definition.function": ("tool",),
    "toolbus.worker.run.invocation": ("Invocation", "invocation"),
    "toolbus.worker.loading.modules": ("init_tools",),
    "toolbus.worker.definition.provide": ("provide",),
    "toolbus.worker.sessions.session": ("Session",),
    "toolbus.worker.worker": ("Worker",),
}

__getattr__, __dir__ = lazily(globals(), _HOMES)
