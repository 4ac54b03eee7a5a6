"""Tell a model in which order the tools of a group are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from toolbus.client.tools.groups import ToolGroup
from toolbus.client.tools.names import wire_name
from toolbus.client.tools.tool import Tool
from toolbus.display import harmless, one_line

_MOST_NAME = 80
_MOST_EXAMPLE = 400
_MOST_NOTE = 600


def usage_notes(groups: Mapping[str, ToolGroup], names: Collection[str]) -> dict[str, str]:
    """Return a sentence for each tool that a group puts into an order: the tools before and after it, and an example at the first.

    Args:
        groups: by id.
        names: the tools that the model is shown; no others are named.
    """
    found: dict[str, list[str]] = {}
    for group_id in sorted(groups):
        group = groups[group_id]
        order = [name for name in dict.fromkeys(group.usage_order) if name in names]
        title = one_line(harmless(group.name or group_id), _MOST_NAME)
        for index, name in enumerate(order):
            before, after = order[index - 1 : index], order[index + 1 : index + 2]
            said = " and ".join([*(f"after {wire_name(each)}" for each in before), *(f"before {wire_name(each)}" for each in after)])
            if said:
                found.setdefault(name, []).append(f"In the group {title!r} it is used {said}.")
        first = (order or [name for name in group.tool_ids if name in names])[:1]
        if first and group.usage_example:
            found.setdefault(first[0], []).append(
                f"Example of the group {title!r}: {one_line(harmless(group.usage_example), _MOST_EXAMPLE)}"
            )
    return {name: one_line(" ".join(notes), _MOST_NOTE) for name, notes in found.items()}


def noted(tool: Tool, note: str, most: int) -> Tool:
    """Return a tool whose description ends with a note, which stays when a description of over ``most`` characters is cut."""
    description = tool.descriptor.description
    # Room for what marks a tool as external.
    left = most - len(note) - 16
    if len(description) > left:
        description = f"{description[: left - 1]}…"
    descriptor = msgspec.structs.replace(tool.descriptor, description=f"{description}\n\n{note}" if description else note)
    return Tool(descriptor, tool.service_descriptor, available=tool.available, owner=tool.owner, digest=tool.digest)
