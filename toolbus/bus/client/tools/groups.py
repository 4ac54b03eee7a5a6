"""``ToolGroup``: tools that are used together, as stored in the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.results import DescriptorError


class ToolGroup(msgspec.Struct, frozen=True):
    """Tools that are used together.

    Attributes:
        group_id: its id.
        name: for people.
        description: its purpose.
        category: a label.
        tool_ids: its tools.
        usage_order: the tools in the order in which they are used.
        usage_example: for models.
    """

    group_id: str = ""
    name: str = ""
    description: str = ""
    category: str = ""
    tool_ids: tuple[str, ...] = ()
    usage_order: tuple[str, ...] = ()
    usage_example: str = ""


def read_group(id: str, document: bytes) -> ToolGroup:
    """Return the group that a stored document is.

    Raises:
        DescriptorError: it is none.
    """
    try:
        return msgspec.structs.replace(msgspec.json.decode(document, type=ToolGroup), group_id=id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DescriptorError(f"it is no group of tools: {error}") from None


RUNTIME = "worker"
"""The runtime of tools that say nothing of theirs."""


def runtime_of(tool: Tool) -> str:
    """Return what runs a tool: ``runtime`` in its ``x-toolbus``, or ``worker``."""
    declared = tool.descriptor.extensions.get("runtime")
    return declared if isinstance(declared, str) and declared else RUNTIME


def groups_of(stored: Mapping[str, ToolGroup], tools: Mapping[str, Tool]) -> dict[str, ToolGroup]:
    """Return the groups by id, sorted: those that are stored, and those that tools name; of their tools only these."""
    found = dict(stored)
    named: dict[str, list[str]] = {}
    for tool in tools.values():
        for group in tool.groups:
            named.setdefault(group, []).append(tool.name)
    for label in named.keys() - found.keys():
        found[label] = ToolGroup(label, label)
    return {each: _narrowed(found[each], named.get(each, ()), tools) for each in sorted(found)}


def memberships(groups: Mapping[str, ToolGroup]) -> dict[str, list[str]]:
    """Return the ids of the groups that each tool is in, sorted."""
    found: dict[str, list[str]] = {}
    for group_id, group in groups.items():
        for name in group.tool_ids:
            found.setdefault(name, []).append(group_id)
    return found


def _narrowed(group: ToolGroup, named: Iterable[str], tools: Mapping[str, Tool]) -> ToolGroup:
    # Those that are stored keep their order.
    of = dict.fromkeys([*(name for name in group.tool_ids if name in tools), *sorted(named)])
    order = tuple(name for name in group.usage_order if name in of)
    return msgspec.structs.replace(group, name=group.name or group.group_id, tool_ids=tuple(of), usage_order=order)
