"""For tests of tools: handlers without a bus, and fixtures with one (``toolbus.testing.fixtures``)."""

from toolbus.testing.environment import InvocationEnvironment
from toolbus.testing.outcome import NestedCall, Outcome

__all__ = ["InvocationEnvironment", "NestedCall", "Outcome"]
