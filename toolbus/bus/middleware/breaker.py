"""``CircuitBreaker``: a tool that keeps failing is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from toolbus.bus.middleware.chain import Next, ToolCall
from toolbus.bus.values import rules
from toolbus.bus.values.results import ERROR_TYPES, OF_TOOLS, ErrorInfo, ToolResult

# Of words that have not been heard of for longest, the oldest is forgotten.
_MOST_CIRCUITS = 10_000


_RULES = {
    "failures": rules.whole("a whole number above 0", 1),
    "cooldown": rules.number("a number of seconds above 0", above=0, most=1e9),
    "trips": rules.Rule(
        f"error types ({', '.join(sorted(ERROR_TYPES))})",
        lambda value: isinstance(value, Collection) and not isinstance(value, str) and ERROR_TYPES.issuperset(value),
    ),
    "by": rules.FUNCTION,
}


class _Circuit:
    """One tool's failures in a row, and until when it is left alone (monotonic seconds).

    Each time it opens, tries or closes, a generation begins. What a call says counts in the generation in which it began: one that
    began before knows nothing about the tool's health since.
    """

    __slots__ = ("failures", "generation", "open_until", "trying")

    def __init__(self) -> None:
        self.failures = self.generation = 0
        self.open_until = 0.0
        self.trying = False

    def open(self, seconds: float) -> None:
        """Leave the tool alone for so long."""
        self.generation += 1
        self.trying = False
        self.open_until = time.monotonic() + seconds

    def begin_try(self) -> None:
        """Let one call through."""
        self.generation += 1
        self.trying = True

    def close(self) -> None:
        """Let all calls through."""
        self.generation += 1
        self.trying = False
        self.failures = 0


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
        self._circuits: dict[str, _Circuit] = {}

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass, or refuse it while the circuit is open."""
        circuit = self._circuit(self._by(call))
        if circuit.failures >= self._most:
            wait = circuit.open_until - time.monotonic()
            if circuit.trying or wait > 0:
                return ToolResult.fail(self._refusal(call, max(wait, 0.1)))
            circuit.begin_try()
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
                circuit.open(self._cooldown)
        elif circuit.trying:
            circuit.close()
        else:
            circuit.failures = 0

    def _circuit(self, name: str) -> _Circuit:
        circuit = self._circuits.pop(name, None) or _Circuit()
        if len(self._circuits) >= _MOST_CIRCUITS:
            del self._circuits[next(iter(self._circuits))]
        self._circuits[name] = circuit
        return circuit

    def _refusal(self, call: ToolCall, wait: float) -> ErrorInfo:
        message = f"{call.name} failed {self._most} times in a row and is left alone; try again in {wait:.1f} s, or use another tool"
        return ErrorInfo("unavailable", "circuit_open", message, retryable=True, retry_after=wait)
