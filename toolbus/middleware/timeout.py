"""``Timeout``: a bound on what is further in."""

from __future__ import annotations

import asyncio

from toolbus import rules
from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import ErrorInfo, ToolResult, deadline_exceeded

_RULES = {"seconds": rules.number("a number of seconds above 0", above=0, most=1e9)}


class Timeout:
    """Gives up after ``seconds``, whatever the caller allows. The handler is cancelled; one in a thread is told.

    Raises:
        ConfigurationError: it is no positive number of seconds.
    """

    def __init__(self, seconds: float) -> None:
        rules.check({"seconds": seconds}, _RULES, "Timeout")
        self.seconds = seconds

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass, for so long."""
        try:
            async with asyncio.timeout(self.seconds) as scope:
                return await next(call)
        except TimeoutError:
            # One of the handler's own is the handler's business.
            if not scope.expired():
                raise
        message = f"{call.name} did not finish within {self.seconds:g} s"
        if call.effect == "once":
            return ToolResult.fail(ErrorInfo("outcome_unknown", "timeout", f"{message}; it may or may not have taken effect"))
        return ToolResult.fail(deadline_exceeded(message, "timeout"))
