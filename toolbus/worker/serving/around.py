"""Check the middleware of a worker against what the worker serves."""

from __future__ import annotations

from collections.abc import Iterable

from toolbus import telemetry
from toolbus.middleware.chain import Middleware, Only, checked
from toolbus.results import ConfigurationError
from toolbus.worker.definition.function import tool_of
from toolbus.worker.serving.handlers import Served


def checked_around(middleware: Iterable[Middleware], served: Iterable[Served]) -> tuple[Middleware, ...]:
    """Return the middleware as it was given; names of ``only`` that nothing here has are logged.

    Raises:
        ConfigurationError: one is no middleware, or is a tool.
    """
    found = checked(middleware)
    for each in found:
        made = tool_of(each)
        if made is not None:
            raise ConfigurationError(
                f"{made.origin} is a tool, not middleware: give what runs around tools, an async function of (call, next)"
            )
    names: set[str] = set()
    for one in served:
        if one.serves_any_tool:
            return found
        names |= {one.id, *one.tools}
    for each in found:
        unknown = sorted(each.tools - names) if isinstance(each, Only) else []
        if unknown:
            telemetry.log.warning("middleware.unknown_tools", tools=unknown, served=sorted(names)[:20])
    return found
