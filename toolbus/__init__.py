"""toolbus: a distributed pool of tool workers for LLM agents, over Redis Streams."""

from toolbus.client.bus import ToolBus
from toolbus.client.call import Call
from toolbus.client.events import Event, Finished, Reset, Started, Text
from toolbus.client.tool import Tool, ToolChange
from toolbus.options import CallOptions
from toolbus.results import (
    Blob,
    BrokerError,
    BrokerUnavailable,
    CallCancelled,
    ConfigurationError,
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
from toolbus.worker.base import ToolService
from toolbus.worker.function import tool
from toolbus.worker.invocation import Invocation, invocation
from toolbus.worker.retry import Retry
from toolbus.worker.worker import Worker

__all__ = [
    "Blob",
    "BrokerError",
    "BrokerUnavailable",
    "Call",
    "CallCancelled",
    "CallOptions",
    "ConfigurationError",
    "DescriptorError",
    "EnvelopeError",
    "ErrorInfo",
    "Event",
    "Finished",
    "Invocation",
    "Progress",
    "RegistrationRefused",
    "Reset",
    "ResultMeta",
    "Retry",
    "Settings",
    "Started",
    "StreamReset",
    "Text",
    "Tool",
    "ToolBus",
    "ToolChange",
    "ToolError",
    "ToolResult",
    "ToolService",
    "ToolbusError",
    "UnsupportedServer",
    "Worker",
    "invocation",
    "tool",
]
