"""``Near``: middleware that answers lookups in the process that makes them."""

from __future__ import annotations

from toolbus.assistant.catalogue import Catalogue
from toolbus.client.bus import ToolBus
from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import ToolError, ToolResult

_LOOKUPS = frozenset({"list_tools", "get_tool_details", "list_groups", "list_backend_runtimes"})


class Near:
    """Answers the calls of the service ``platform`` from the bus's own catalogue, and lets all others pass.

    Attributes:
        bus: the bus whose calls it sees; until it is set everything passes.
    """

    def __init__(self) -> None:
        self.bus: ToolBus | None = None

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Answer a lookup; its arguments have been checked against the tool's schema."""
        if self.bus is None or call.service != "platform" or call.tool not in _LOOKUPS:
            return await next(call)
        try:
            return ToolResult(data=getattr(Catalogue(self.bus, call.user), call.tool)(**call.arguments))
        except ToolError as error:
            return ToolResult.fail(error.error)
