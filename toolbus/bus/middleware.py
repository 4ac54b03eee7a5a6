"""``Middleware``: its type, the calls it sees, and the chain that several make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from toolbus.bus.values import rules
from toolbus.bus.values.results import ConfigurationError, ToolError, ToolResult

if TYPE_CHECKING:
    from toolbus.bus.broker.held.limits import Tallies


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call on its way.

    Attributes:
        id: the call's correlation id.
        tool: the tool's name; empty for the untyped lower tier of a service.
        service: the service's id; empty at the caller when it does not know the tool.
        user, session: on whose behalf.
        arguments, config: what the handler will be given.
        metadata: the caller's own strings.
        idempotency_key: the caller's own key, or empty.
        digest: of the publication that runs it in a worker, or that the caller knows.
        effect: the declared effect, or empty.
        cache: whether an earlier answer may stand for a later one; None when nothing but the effect is known of the tool.
        side: ``call`` around a call at its caller, ``handler`` around a handler in its worker.
        attempt: the delivery's number in a worker, from 1; 0 at the caller.
        tallies: what all processes of the namespace count together.
        delivered: returns how many bytes of the answer have been streamed so far.
    """

    id: str
    tool: str
    service: str
    user: str
    session: str
    arguments: Mapping[str, Any]
    config: Mapping[str, Any]
    effect: str
    side: Literal["call", "handler"]
    attempt: int
    tallies: Tallies
    metadata: Mapping[str, str] = {}
    idempotency_key: str = ""
    digest: str = ""
    cache: bool | None = None
    delivered: Callable[[], int] = lambda: 0

    @property
    def name(self) -> str:
        """The tool's name, or the service's when it is called itself."""
        return self.tool or self.service

    @property
    def cacheable(self) -> bool:
        """True when an earlier answer may stand for this one's."""
        return self.effect == "read" if self.cache is None else self.cache

    def with_arguments(self, arguments: Mapping[str, Any]) -> ToolCall:
        """Return the same call with other arguments, for ``next``; they are checked like any others."""
        return msgspec.structs.replace(self, arguments=arguments)


Next = Callable[[ToolCall], Awaitable[ToolResult]]
"""The next middleware, or the call or handler itself. Its failures are results with an ``error``."""

Middleware = Callable[[ToolCall, Next], Awaitable[ToolResult]]


def checked(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Middleware as it was given, from the outermost to the innermost.

    Raises:
        ConfigurationError: one can't be called with (call, next), or is a class that was not instantiated.
    """
    found = tuple(middleware)
    for each in found:
        if flaw := _flaw(each):
            raise ConfigurationError(f"{each!r} is no middleware: {flaw}")
    return found


def chained(middleware: Iterable[Middleware], innermost: Next) -> Next:
    """One callable that goes through all of them, the first one outermost."""
    inner = innermost
    for each in reversed(tuple(middleware)):
        inner = _around(each, inner)
    return inner


def only(middleware: Middleware, *, tools: Collection[str]) -> Middleware:
    """Return middleware that applies to some tools only.

    Args:
        middleware: the middleware.
        tools: the tools' names, or the name of one; services' ids for calls of services themselves.

    Raises:
        ConfigurationError: there is no such middleware, or ``tools`` are no names.
    """
    checked([middleware])
    rules.check({"tools": tools}, {"tools": rules.TEXTS}, "only")
    return Only(middleware, frozenset(rules.names(tools)))


class Only:
    """Middleware that applies to some tools only; ``only`` makes it.

    Attributes:
        tools: the tools' names.
    """

    def __init__(self, middleware: Middleware, tools: frozenset[str]) -> None:
        self.tools = tools
        self._middleware = middleware

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let the call pass through the middleware if it is for its tool."""
        return await (self._middleware(call, next) if call.name in self.tools else next(call))

    def __repr__(self) -> str:
        return f"only({self._middleware!r}, tools={sorted(self.tools)})"


def _flaw(each: object) -> str:
    """Return why something can't be middleware, or an empty text."""
    usage = "give an instance, or an async function of (call, next)"
    if isinstance(each, ModuleType):
        return f"it is a module; name the middleware in it, {each.__name__}:NAME"
    if isinstance(each, type) or not callable(each):
        return usage
    called = each if inspect.isroutine(each) or isinstance(each, functools.partial) else type(each).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        return f"it is a generator; {usage}"
    try:
        inspect.signature(each).bind(None, None)
    except TypeError:
        return f"it does not take (call, next); {usage}"
    except ValueError:
        # Some callables of C have no signature; what they take is seen when they are called.
        pass
    return ""


def _around(middleware: Middleware, inner: Next) -> Next:
    async def step(call: ToolCall) -> ToolResult:
        result = await middleware(call, inner)
        if not isinstance(result, ToolResult):
            raise ToolError(f"the middleware {middleware!r} returned no ToolResult", code="bad_middleware")
        return result

    return step
