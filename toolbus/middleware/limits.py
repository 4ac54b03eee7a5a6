"""Middleware that limits calls: how often, how long, and not at all while a tool keeps failing; and counts them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

import msgspec

from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values import rules
from toolbus.bus.values.results import ERROR_TYPES, OF_TOOLS, BrokerError, ErrorInfo, ToolResult, deadline_exceeded

DAY = 86_400.0

_RULES = {
    "limit": rules.whole("a whole number of calls above 0", 1),
    "per": rules.number("a number of seconds from 0.001 to 400 days", least=0.001, most=400 * DAY),
    "by": rules.FUNCTION,
    "name": rules.TEXT,
    "seconds": rules.number("a number of seconds above 0", above=0, most=1e9),
    "failures": rules.whole("a whole number above 0", 1),
    "cooldown": rules.number("a number of seconds above 0", above=0, most=1e9),
    "trips": rules.Rule(
        f"error types ({', '.join(sorted(ERROR_TYPES))})",
        lambda value: isinstance(value, Collection) and not isinstance(value, str) and ERROR_TYPES.issuperset(value),
    ),
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


# Of words that have not been heard of for longest, the oldest is forgotten.
_MOST_CIRCUITS = 10_000


class _Circuit(msgspec.Struct, eq=False):
    """One tool's failures in a row, and until when it is left alone (monotonic seconds).

    Each time it opens, tries or closes, a generation begins. What a call says counts in the generation in which it began: one that
    began before knows nothing about the tool's health since.
    """

    failures: int = 0
    generation: int = 0
    open_until: float = 0.0
    trying: bool = False

    def turn(self, *, trying: bool = False) -> None:
        """Begin a generation, in which one call is let through if ``trying``."""
        self.generation += 1
        self.trying = trying


class CircuitBreaker:
    """After ``failures`` failures in a row calls of a tool fail at once with ``unavailable`` for ``cooldown`` seconds.

    Then one call is let through: its success closes the circuit, its failure opens it for another ``cooldown``. Each process judges for
    itself: what it sees fail may be its own network.

    Args:
        trips: the error types that count; others say nothing about the tool's health.
        by: what has one circuit; by default each tool.

    Raises:
        ConfigurationError: a value is of another kind, or out of its range.
    """

    def __init__(
        self,
        failures: int = 5,
        cooldown: float = 30.0,
        *,
        trips: Collection[str] = OF_TOOLS,
        by: Callable[[ToolCall], str] = lambda call: f"{call.service}\0{call.name}",
    ) -> None:
        rules.check({"failures": failures, "cooldown": cooldown, "trips": trips, "by": by}, _RULES, "CircuitBreaker")
        self._most = failures
        self._cooldown = cooldown
        self._trips = frozenset(trips)
        self._by = by
        self._circuits: Latest[str, _Circuit] = Latest(_MOST_CIRCUITS)

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass, or refuse it while the circuit is open."""
        name = self._by(call)
        circuit = self._circuits[name] = self._circuits.get(name) or _Circuit()
        if circuit.failures >= self._most:
            wait = circuit.open_until - time.monotonic()
            if circuit.trying or wait > 0:
                return ToolResult.fail(self._refusal(call, max(wait, 0.1)))
            circuit.turn(trying=True)
        generation = circuit.generation
        healthy: bool | None = None
        try:
            result = await next(call)
            healthy = True if result.error is None else (False if result.error.type in self._trips else None)
        except Exception:
            healthy = False
            raise
        finally:
            if circuit.generation == generation:
                self._judge(circuit, healthy)
        return result

    def _judge(self, circuit: _Circuit, healthy: bool | None) -> None:
        """Take in how a call of the current generation ended; None says nothing, as when it was cancelled."""
        if healthy is None:
            # The next call is the next try.
            circuit.trying = False
        elif not healthy:
            circuit.failures += 1
            if circuit.failures >= self._most:
                circuit.turn()
                circuit.open_until = time.monotonic() + self._cooldown
        else:
            circuit.failures = 0
            if circuit.trying:
                circuit.turn()

    def _refusal(self, call: ToolCall, wait: float) -> ErrorInfo:
        message = f"{call.name} failed {self._most} times in a row and is left alone; try again in {wait:.1f} s, or use another tool"
        return ErrorInfo("unavailable", "circuit_open", message, retryable=True, retry_after=wait)
