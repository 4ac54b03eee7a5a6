"""``Audience``: the tools that some principals see, as rows that are kept up to date."""

from __future__ import annotations

from typing import Any

from toolbus.client.bus import ToolBus
from toolbus.client.tools.tool import Tool
from toolbus.client.tools.view import ToolView
from toolbus.gateway.page.rows import CatalogueRow, catalogue_row, changes
from toolbus.gateway.principals import Principal

AudienceKey = tuple[str, frozenset[str] | None, frozenset[str] | None]
"""Principals with the same user, groups and tools see the same."""


def audience_key(principal: Principal) -> AudienceKey:
    """Return what decides on the tools that a principal sees."""
    return principal.user, principal.groups, principal.tools


class Audience:
    """The rows of the tools that one kind of principal sees."""

    def __init__(self, bus: ToolBus, principal: Principal) -> None:
        self._view: ToolView = principal.sees(bus)
        self._version = -1
        self._made: dict[str, tuple[Tool, CatalogueRow]] = {}
        self.rows: dict[str, CatalogueRow] = {}
        self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Look at the catalogue, and return what has changed in it since the last time."""
        version = self._view.catalogue.version
        if version == self._version:
            return {}
        self._version = version
        before = self._made
        # Tools are immutable: a row is made anew only for another tool.
        self._made = {
            name: (tool, before[name][1] if name in before and before[name][0] is tool else catalogue_row(tool))
            for name, tool in self._view.items()
        }
        rows = {name: row for name, (_, row) in self._made.items()}
        found = changes({"catalogue": self.rows}, {"catalogue": rows})
        self.rows = rows
        return found
