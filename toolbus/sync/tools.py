"""``Tools``: the tools of a bus as they were when they were asked for, and their definitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from toolbus.bus.client.tools.definitions import Format
from toolbus.bus.client.tools.tool import Tool, ToolChange
from toolbus.bus.client.tools.view import ToolView
from toolbus.sync.loop import Loop


class Tools(dict[str, Tool]):
    """Tools by name, sorted, as they were when they were asked for.

    Attributes:
        view: the live view that they are from, which belongs to the event loop.
    """

    def __init__(self, loop: Loop, view: ToolView) -> None:
        super().__init__(loop.run(lambda: dict(view)))
        self._loop = loop
        self.view = view

    def filter(
        self,
        *,
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        names: Collection[str] | None = None,
        user: str | None = None,
    ) -> Tools:
        """Return the tools in any of these groups, of any of these categories, with any of these names, that this user may see."""
        return Tools(self._loop, self.view.filter(groups=groups, categories=categories, names=names, user=user))

    def definitions(self, format: Format = "bare", *, strict: bool = False, namespaces: bool = True) -> list[dict[str, Any]]:
        """Definitions of the tools for a model, as they are now; see ``ToolView.definitions``."""
        return self._loop.run(lambda: self.view.definitions(format, strict=strict, namespaces=namespaces))

    def changes(self) -> Iterator[ToolChange]:
        """Yield changes from now on, until the bus is closed; see ``ToolView.changes``."""
        yield from self._loop.each(self.view.changes(), lasting=True)
