"""TrustGraph's tool services: its names and conventions over toolbus.

A subclass of ``DynamicToolService`` that was written for TrustGraph runs here after its import is changed.
"""

from toolbus.compat.trustgraph.client import ToolServiceClient, ToolServiceImpl, ToolServiceTimeout
from toolbus.compat.trustgraph.exceptions import TooManyRequests
from toolbus.compat.trustgraph.schema import Error, Message, ToolServiceRequest, ToolServiceResponse
from toolbus.compat.trustgraph.service import DynamicToolService, default_concurrency, default_topic

__all__ = [
    "DynamicToolService",
    "Error",
    "Message",
    "TooManyRequests",
    "ToolServiceClient",
    "ToolServiceImpl",
    "ToolServiceRequest",
    "ToolServiceResponse",
    "ToolServiceTimeout",
    "default_concurrency",
    "default_topic",
]
