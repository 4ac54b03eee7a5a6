"""Tools that an agent has known and that are gone, so that a caller who names one is told so."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolbus.client.tools.tool import Tool

_MOST = 1_000


class FormerTools:
    """The tools that went last, at most a thousand.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tools: dict[str, tuple[Tool, float]] = {}

    def add(self, tool: Tool) -> None:
        """Remember a tool that goes now."""
        self._tools.pop(tool.name, None)
        self._tools[tool.name] = (tool, self._clock())
        if len(self._tools) > _MOST:
            del self._tools[next(iter(self._tools))]

    def remove(self, name: str) -> None:
        """Forget a tool that is there again."""
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        """Return the tool as it was, or None."""
        found = self._tools.get(name)
        return None if found is None else found[0]

    def seconds(self, name: str) -> float:
        """Return the seconds since it went."""
        return self._clock() - self._tools[name][1]
