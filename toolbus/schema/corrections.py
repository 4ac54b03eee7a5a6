"""Sum up what was corrected in the schemas of a service's tools, for one line in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_TOOLS = 20
_MOST_CHANGES = 20


def summary(changes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the corrected tools, and the first changes with the tool of each; ``further`` is the number of changes left out."""
    every = [f"{tool}: {change}" for tool, made in sorted(changes.items()) for change in made]
    fields: dict[str, Any] = {"tools": sorted(changes)[:_MOST_TOOLS], "changes": every[:_MOST_CHANGES]}
    if len(every) > _MOST_CHANGES:
        fields["further"] = len(every) - _MOST_CHANGES
    return fields
