"""Middleware: callables around handlers (``Worker(..., middleware=[...])``) and around calls (``ToolBus``) alike."""

from toolbus.bus.middleware import Answers, Cache, CircuitBreaker, Metering, Middleware, Next, Quota, RateLimit, Timeout, ToolCall, only

__all__ = ["Answers", "Cache", "CircuitBreaker", "Metering", "Middleware", "Next", "Quota", "RateLimit", "Timeout", "ToolCall", "only"]
