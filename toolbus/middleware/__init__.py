"""Middleware: callables around callables, around handlers (``Worker(..., middleware=[...])``) and calls (``ToolBus``) alike.

A middleware is any ``async def around(call, next)`` that returns a ``ToolResult``, usually that of ``await next(call)``.
Each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolbus.middleware.breaker import CircuitBreaker
    from toolbus.middleware.cache import Cache
    from toolbus.middleware.chain import Middleware, Next, ToolCall, only
    from toolbus.middleware.invalidation import Answers
    from toolbus.middleware.limits import Quota, RateLimit
    from toolbus.middleware.metering import Metering
    from toolbus.middleware.timeout import Timeout

__all__ = ["Answers", "Cache", "CircuitBreaker", "Metering", "Middleware", "Next", "Quota", "RateLimit", "Timeout", "ToolCall", "only"]

_HOMES = {
    "toolbus.middleware.breaker": ("CircuitBreaker",),
    "toolbus.middleware.cache": ("Cache",),
    "toolbus.middleware.chain": ("Middleware", "Next", "ToolCall", "only"),
    "toolbus.middleware.invalidation": ("Answers",),
    "toolbus.middleware.limits": ("Quota", "RateLimit"),
    "toolbus.middleware.metering": ("Metering",),
    "toolbus.middleware.timeout": ("Timeout",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
