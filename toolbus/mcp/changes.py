"""Tell clients that the list of tools which they see has changed."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.client.bus import ToolBus
from toolbus.client.tools.view import ToolView
from toolbus.mcp.listing import definitions_of

# Seconds in which further changes are gathered: a worker that starts publishes several tools.
_GATHERING = 0.01


class ListWatch:
    """One list of tools that is watched; ``changed`` is set when it is another one than before."""

    def __init__(self, tools: ToolView) -> None:
        self._tools = tools
        self._last = self._now()
        self.changed = asyncio.Event()

    def look(self) -> None:
        """Compare the list with what it was."""
        now = self._now()
        # Definitions are the same objects until their tool changes, so this compares little.
        if now != self._last:
            self._last = now
            self.changed.set()

    def _now(self) -> list[dict[str, Any]]:
        return definitions_of(self._tools)


class ListChanges:
    """Follows the catalogue for all who watch a list of tools."""

    def __init__(self, bus: ToolBus) -> None:
        self._bus = bus
        self._watches: set[ListWatch] = set()

    def watch(self, tools: ToolView) -> ListWatch:
        """Return a watch of these tools, until ``stop``."""
        watch = ListWatch(tools)
        self._watches.add(watch)
        return watch

    def stop(self, watch: ListWatch) -> None:
        """End a watch."""
        self._watches.discard(watch)

    async def run(self) -> None:
        """Follow the catalogue until the bus closes."""
        catalogue, seen = self._bus.tools.catalogue, -1
        with self._bus.tools.subscribe() as subscription:
            async for _ in subscription:
                if catalogue.version == seen:
                    # What has gathered was seen by the last look.
                    continue
                await asyncio.sleep(_GATHERING)
                seen = catalogue.version
                for watch in [*self._watches]:
                    watch.look()
