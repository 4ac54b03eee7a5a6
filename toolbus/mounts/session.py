"""``Session``: calls on a mounted server, with what can go wrong as errors of the bus."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, MCPError
from mcp_types import Tool

from toolbus.display import harmless
from toolbus.mounts.answers import bad_answer, error_of, result_of
from toolbus.mounts.codes import is_over
from toolbus.mounts.connection import ServerConnection
from toolbus.results import ToolError, ToolResult
from toolbus.worker.run.invocation import Invocation

# Progress that is passed on at once, and per second after that.
_BURST = 100
_RATE = 20.0
_MOST_TEXT = 1_000


class Session:
    """Runs calls over a connection that all of them share."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def calling(self, call: Invocation, effect: str) -> AsyncIterator[Client]:
        """Provide the client for one call.

        Raises:
            ToolError: the server is not there, refused, ended, or answered nonsense.
        """
        async with self._connection.client(call.remaining) as client:
            try:
                yield client
            except MCPError as error:
                if is_over(error):
                    self._connection.restart("it has forgotten the session")
                raise error_of(error, effect) from None
            except ToolError:
                raise
            except (RuntimeError, ValueError, TypeError, KeyError) as error:
                # What the SDK says of answers that no server may give.
                raise bad_answer(str(error)) from None

    async def call_tool(self, tool: Tool, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Call a tool; what it says of its progress is passed on, and its cancellation too."""
        async with self.calling(call, effect_of(tool)) as client:
            return result_of(await client.call_tool(tool.name, arguments, progress_callback=_Progress(call).tell))


def effect_of(tool: Tool) -> str:
    """Return what a second execution would do, as far as a tool's annotations say."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    return "idempotent" if hints is not None and hints.idempotent_hint else "once"


class _Progress:
    """Passes progress on, but no flood of it."""

    def __init__(self, call: Invocation) -> None:
        self._call = call
        self._allowance = float(_BURST)
        self._filled = time.monotonic()

    async def tell(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._filled) * _RATE)
        self._filled = now
        if self._allowance < 1 or not math.isfinite(progress):
            return
        self._allowance -= 1
        known = total if total is not None and math.isfinite(total) else None
        self._call.progress(progress, known, harmless(message or "")[:_MOST_TEXT])
