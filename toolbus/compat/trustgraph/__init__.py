"""TrustGraph's tool services: its names and conventions over toolbus.

A subclass of ``DynamicToolService`` that was written for TrustGraph runs here after its import is changed.
Type checkers see the names of this package, and not the modules at that project's paths.
"""

from toolbus.compat.facade import make_modules
from toolbus.compat.trustgraph.client import ToolServiceClient, ToolServiceImpl, ToolServiceTimeout
from toolbus.compat.trustgraph.messages import Error, Message, ToolServiceRequest, ToolServiceResponse, TooManyRequests
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

_CLIENT, _MESSAGES, _SERVICE = f"{__name__}.client", f"{__name__}.messages", f"{__name__}.service"

make_modules(
    __name__,
    {
        "agent.react.tools": (_CLIENT, "ToolServiceImpl"),
        "agent.tool_filter": (_CLIENT, "filter_tools_by_group_and_state get_next_state validate_tool_config"),
        "base.dynamic_tool_service": (_SERVICE, "DynamicToolService default_concurrency default_topic"),
        "base.tool_service_client": (_CLIENT, "ToolServiceClient"),
        "base": (f"{__name__}", "DynamicToolService ToolServiceClient"),
        "exceptions": (_MESSAGES, "TooManyRequests"),
        "schema": (_MESSAGES, "Error Message ToolRequest ToolResponse ToolServiceRequest ToolServiceResponse"),
    },
)
