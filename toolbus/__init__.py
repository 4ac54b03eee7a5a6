"""toolbus: a distributed pool of tool workers for LLM agents, over Redis Streams."""

from toolbus.client.bus import ToolBus
from toolbus.client.call import Call
from toolbus.client.confirmation import Confirmation
from toolbus.client.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.client.executor import ToolExecutor
from toolbus.client.observers import Confirming, Requested, ToolEvent
from toolbus.client.tool import Tool, ToolChange
from toolbus.client.toolcalls import ToolCall
from toolbus.client.turn import Turn
from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
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
from toolbus.worker.base import ToolService
from toolbus.worker.function import tool
from toolbus.worker.invocation import Invocation, invocation
from toolbus.worker.modules import init_tools
from toolbus.worker.provide import provide
from toolbus.worker.retry import Retry
from toolbus.worker.sessions import Session
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
    "ToolCall",
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
