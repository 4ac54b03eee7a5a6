"""``CircuitBreaker``: a tool that keeps failing is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import ConfigurationError, ErrorInfo, ToolResult

TROUBLE = frozenset({"tool_error", "deadline_exceeded", "unavailable", "overloaded", "outcome_unknown", "slow_consumer"})
"""The error types that say something about the tool and not about the call."""

# Of words that have not been heard of for longest, the oldest is forgotten.
_MOST_CIRCUITS = 10_000


class _Circuit:
    """One tool's failures in a row, and until when it is left alone (monotonic seconds)."""

    __slots__ = ("failures", "open_until", "trying")

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0.0
        self.trying = False


class CircuitBreaker:
    """After ``failures`` failures in a row calls of a tool fail at once with ``unavailable`` for ``cooldown`` seconds.

    Then one call is let through: its success closes the circuit, its failure opens it for another ``cooldown``. Each process judges for
    itself: what it sees fail may be its own network.

    Args:
        trips: the error types that count; others say nothing about the tool's health.
        by: what has one circuit; by default each tool.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    def __init__(
        self,
        failures: int = 5,
        cooldown: float = 30.0,
        *,
        trips: Collection[str] = TROUBLE,
        by: Callable[[ToolCall], str] = lambda call: f"{call.service}\0{call.name}",
    ) -> None:
        if failures < 1 or not 0 < cooldown < 1e9:
            raise ConfigurationError(f"a circuit needs at least 1 failure and a cooldown above 0, not {failures} and {cooldown}")
        self._most = failures
        self._cooldown = cooldown
        self._trips = frozenset(trips)
        self._by = by
        self._circuits: dict[str, _Circuit] = {}

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass, or refuse it while the circuit is open."""
        circuit = self._circuit(self._by(call))
        now = time.monotonic()
        if circuit.failures >= self._most:
            if circuit.trying or now < circuit.open_until:
                return ToolResult.fail(self._refusal(call, max(circuit.open_until - now, 0.1)))
            circuit.trying = True
        try:
            result = await next(call)
        except Exception:
            self._failed(circuit)
            raise
        finally:
            # A cancelled try says nothing: the next call is the next try.
            circuit.trying = False
        if result.error is None:
            circuit.failures = 0
        elif result.error.type in self._trips:
            self._failed(circuit)
        return result

    def _failed(self, circuit: _Circuit) -> None:
        circuit.failures += 1
        if circuit.failures >= self._most:
            circuit.open_until = time.monotonic() + self._cooldown

    def _circuit(self, name: str) -> _Circuit:
        circuit = self._circuits.pop(name, None) or _Circuit()
        if len(self._circuits) >= _MOST_CIRCUITS:
            del self._circuits[next(iter(self._circuits))]
        self._circuits[name] = circuit
        return circuit

    def _refusal(self, call: ToolCall, wait: float) -> ErrorInfo:
        message = f"{call.name} failed {self._most} times in a row and is left alone; try again in {wait:.1f} s, or use another tool"
        return ErrorInfo("unavailable", "circuit_open", message, retryable=True, retry_after=wait)
