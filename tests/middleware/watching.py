"""Middleware that looks on, for the tests of callers' and of handlers' middleware."""

from __future__ import annotations

from toolbus import ToolResult
from toolbus.bus.middleware import Next, ToolCall


class Watch:
    """Remembers what it saw, and lets it pass."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        self.calls.append(call)
        result = await next(call)
        self.results.append(result)
        return result
