"""Test tools: run handlers without a bus, or with fixtures that have one (``toolbus.testing.fixtures``)."""

from toolbus.testing.environment import InvocationEnvironment, NestedCall, Outcome

__all__ = ["InvocationEnvironment", "NestedCall", "Outcome"]
