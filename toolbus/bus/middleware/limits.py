"""``RateLimit`` and ``Quota``: how often a user may call a tool, counted by all processes of the namespace together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from toolbus.bus.middleware.chain import Next, ToolCall
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values import rules
from toolbus.bus.values.results import BrokerError, ErrorInfo, ToolResult, deadline_exceeded

DAY = 86_400.0

_RULES = {
    "limit": rules.whole("a whole number of calls above 0", 1),
    "per": rules.number("a number of seconds from 0.001 to 400 days", least=0.001, most=400 * DAY),
    "by": rules.FUNCTION,
    "name": rules.TEXT,
}


def user_and_tool(call: ToolCall) -> str:
    """Each user's calls of each tool count for themselves."""
    return f"{call.user}\0{call.name}"


class RateLimit:
    """At most ``limit`` calls at once, refilled evenly over ``per`` seconds; further ones fail with ``rate_limited``.

    Args:
        limit: how many.
        per: seconds.
        by: what counts together: a text for each call, by default its user and tool.
        name: limits of one name share their counts; others are apart.

    Raises:
        ConfigurationError: a value is of another kind, or out of its range.
    """

    code = "rate_limit"

    def __init__(self, limit: int, per: float = 1.0, *, by: Callable[[ToolCall], str] = user_and_tool, name: str = "") -> None:
        rules.check({"limit": limit, "per": per, "by": by, "name": name}, _RULES, type_name(self))
        self.limit = limit
        self.per = per
        self._by = by
        self._name = name or f"{self.code} {limit} {per:g}"

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Count the call, and let it pass or refuse it."""
        try:
            wait = await self._counted(call, f"{self._name}\0{self._by(call)}")
        except BrokerError as error:
            message = f"whether the limit allows the call can't be known: {error}"
            return ToolResult.fail(ErrorInfo("unavailable", self.code, message, retryable=True))
        return await next(call) if wait <= 0 else ToolResult.fail(self._refusal(call, wait))

    async def _counted(self, call: ToolCall, name: str) -> float:
        return await call.tallies.spend(name, self.limit, self.per)

    def _refusal(self, call: ToolCall, wait: float) -> ErrorInfo:
        message = f"{call.name} may be called {self.limit} times in {self.per:g} s; try again in {max(wait, 0.1):.1f} s"
        return ErrorInfo("rate_limited", self.code, message, retryable=True, retry_after=wait)


class Quota(RateLimit):
    """At most ``limit`` calls in each period of ``per`` seconds, a day (UTC) unless it is said otherwise."""

    code = "quota"

    def __init__(self, limit: int, per: float = DAY, *, by: Callable[[ToolCall], str] = user_and_tool, name: str = "") -> None:
        super().__init__(limit, per, by=by, name=name)

    async def _counted(self, call: ToolCall, name: str) -> float:
        return await call.tallies.use(name, self.limit, self.per)

    def _refusal(self, call: ToolCall, wait: float) -> ErrorInfo:
        message = f"the quota of {self.limit} calls of {call.name} is used up; it starts anew in {wait:.0f} s"
        return ErrorInfo("rate_limited", self.code, message, retryable=True, retry_after=wait)


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


_TIMEOUT_RULES = {"seconds": rules.number("a number of seconds above 0", above=0, most=1e9)}


class Timeout:
    """Gives up after ``seconds``, whatever the caller allows. The handler is cancelled; one in a thread is told.

    Raises:
        ConfigurationError: it is no positive number of seconds.
    """

    def __init__(self, seconds: float) -> None:
        rules.check({"seconds": seconds}, _TIMEOUT_RULES, "Timeout")
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
