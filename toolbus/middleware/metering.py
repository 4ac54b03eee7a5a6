"""``Metering``: what each user's calls of each tool cost; ``toolbus usage`` shows it."""

from __future__ import annotations

import contextlib
import time

import msgspec

from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import ToolResult


class Metering:
    """Counts calls, errors, milliseconds and bytes of the answers, per user and tool and day, in the namespace's own keys.

    In workers it counts runs of handlers, at the caller it counts calls with all that they waited for: use one of the two. Of an answer
    that was cut off it counts what had been streamed.
    """

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass, and count it; one that raised or was cancelled counts as an error."""
        started = time.monotonic()
        size, failed = None, True
        try:
            result = await next(call)
            size, failed = size_of(result), not result.success
            return result
        finally:
            if size is None:
                size = call.delivered()
            call.tallies.count(call.user, call.name, ms=(time.monotonic() - started) * 1000, size=size, failed=failed)


def size_of(result: ToolResult) -> int:
    """About how many bytes an answer has."""
    size = len(result.output.encode("utf-8", "replace")) if result.output else 0
    if result.data is not None:
        # A result that can't be encoded is not sent, and fails later for that reason.
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            size += len(msgspec.json.encode(result.data))
    return size + sum(len(blob.data) for blob in result.content)
