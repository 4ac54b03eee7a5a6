"""``BusProvider``: the tools of the bus in somebody's own FastMCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_context
from fastmcp.server.providers import Provider
from fastmcp.tools.base import Tool, ToolResult
from mcp_types import ContentBlock, TextContent, ToolAnnotations
from pydantic import PrivateAttr, TypeAdapter

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values import results
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import Progress
from toolbus.bus.values.settings import Settings
from toolbus.edges.mcp.client import block_of

_MOST_TEXT = 1_000
_BLOCK: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)


class BusProvider(Provider):
    """Lists the tools that can be called now: ``FastMCP("mine", providers=[BusProvider()])``.

    A tool's text and progress are told as progress while it runs. It is called for the user that ``user`` says, never for one that a
    client names.

    Args:
        bus: an open bus; the provider opens one of its own when left out.
        user: whom calls are for: a name, or a function of FastMCP's ``Context``.
        groups: only tools of these groups.
        categories: only tools of these categories.
        settings: of the provider's own bus.
    """

    def __init__(
        self,
        bus: ToolBus | None = None,
        *,
        user: str | Callable[[Context], str] = "",
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self._bus = bus
        self._user = user
        self._groups = groups
        self._categories = categories
        self._settings = settings

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keep a bus open while the server runs, unless it was given one."""
        if self._bus is not None:
            yield
            return
        async with ToolBus(settings=self._settings) as bus:
            self._bus = bus
            try:
                yield
            finally:
                self._bus = None

    async def _list_tools(self) -> Sequence[Tool]:
        if self._bus is None:
            return []
        user = self._user if isinstance(self._user, str) else self._user(get_context())
        view = self._bus.tools.filter(groups=self._groups, categories=self._categories, user=user)
        return [_tool(each, self._bus, view, user) for each in view.definitions("mcp")]


class _BusTool(Tool):
    """A tool of the bus, as one caller may call it."""

    _bus: Any = PrivateAttr(default=None)
    _target: str = PrivateAttr(default="")
    _options: dict[str, Any] = PrivateAttr(default_factory=dict)

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool on the bus, and tell its text and progress as progress while it runs."""
        context, pieces, counted = get_context(), 0, False
        async with self._bus.stream(self._target, arguments, **self._options) as call:
            async for event in call.events():
                if isinstance(event, Progress):
                    counted = True
                    await context.report_progress(event.done, event.total, event.message or None)
                elif isinstance(event, Text) and not counted:
                    pieces += 1
                    await context.report_progress(pieces, message=event.text[:_MOST_TEXT])
            result: results.ToolResult = await call.result()
        blocks = [_BLOCK.validate_python(block_of(each, "blob://result")) for each in result.content]
        content = [TextContent(type="text", text=result.observation), *blocks]
        data = result.data
        return ToolResult(content, data if data is None or isinstance(data, dict) else {"result": data}, is_error=not result.success)


def _tool(definition: dict[str, Any], bus: ToolBus, view: ToolView, user: str) -> Tool:
    made = _BusTool(
        name=definition["name"],
        description=definition.get("description", ""),
        parameters=definition["inputSchema"],
        annotations=ToolAnnotations.model_validate(definition["annotations"]) if "annotations" in definition else None,
    )
    known = view.by_wire_name(made.name)
    made._bus, made._target, made._options = bus, made.name if known is None else known.name, {"user": user} if user else {}
    return made
