"""Middleware: callables around callables, around handlers (``Worker(..., middleware=[...])``) and calls (``ToolBus``) alike.

A middleware is any ``async def around(call, next)`` that returns a ``ToolResult``, usually that of ``await next(call)``.
Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily

if TYPE_CHECKING:
    from toolbus.bus.middleware import Middleware, Next, ToolCall, only
    from toolbus.middleware.cache import Answers, Cache
    from toolbus.middleware.limits import CircuitBreaker, Metering, Quota, RateLimit, Timeout

__all__ = ["Answers", "Cache", "CircuitBreaker", "Metering", "Middleware", "Next", "Quota", "RateLimit", "Timeout", "ToolCall", "only"]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.bus.middleware": ("Middleware", "Next", "ToolCall", "only"),
        "toolbus.middleware.cache": ("Cache", "Answers"),
        "toolbus.middleware.limits": ("CircuitBreaker", "Metering", "Quota", "RateLimit", "Timeout"),
    },
)
