"""Describe tools and groups for programs, and find them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus.client.bus import ToolBus
from toolbus.client.tools.definitions import description_of
from toolbus.client.tools.groups import ToolGroup
from toolbus.client.tools.tool import Tool

RUNTIME = "worker"
"""The runtime of tools that say nothing of theirs."""


def groups_of(bus: ToolBus, tools: Mapping[str, Tool]) -> dict[str, ToolGroup]:
    """Return the groups by id, sorted: those that are stored, and those that tools name; of their tools only these."""
    found = dict(bus.tools.catalogue.groups)
    named: dict[str, list[str]] = {}
    for tool in tools.values():
        for group in tool.groups:
            named.setdefault(group, []).append(tool.name)
    for label in named.keys() - found.keys():
        found[label] = ToolGroup(label, label)
    return {each: _narrowed(found[each], named.get(each, ()), tools) for each in sorted(found)}


def _narrowed(group: ToolGroup, named: Iterable[str], tools: Mapping[str, Tool]) -> ToolGroup:
    of = tuple(sorted({name for name in group.tool_ids if name in tools}.union(named)))
    order = tuple(name for name in group.usage_order if name in tools)
    return msgspec.structs.replace(group, name=group.name or group.group_id, tool_ids=of, usage_order=order)


def runtime_of(tool: Tool) -> str:
    """Return what runs a tool: ``runtime`` in its ``x-toolbus``, or ``worker``."""
    declared = tool.descriptor.extensions.get("runtime")
    return declared if isinstance(declared, str) and declared else RUNTIME


def described(tool: Tool, groups: Iterable[str]) -> dict[str, Any]:
    """Return what there is to know about a tool, for ``/v1/tools``."""
    about = tool.descriptor
    output = about.extensions.get("output_schema")
    return {
        "name": tool.name,
        "description": description_of(tool),
        "parameters": tool.parameters,
        "output_schema": output if isinstance(output, dict) else {},
        "service": tool.service,
        "category": tool.category,
        "groups": list(groups),
        "runtime": runtime_of(tool),
        "effect": about.effect,
        "timeout": about.timeout,
        "confirm": about.confirm,
        "external": about.external,
        "available": tool.available,
    }


def memberships(groups: Mapping[str, ToolGroup]) -> dict[str, list[str]]:
    """Return the ids of the groups that each tool is in, sorted."""
    found: dict[str, list[str]] = {}
    for group_id, group in groups.items():
        for name in group.tool_ids:
            found.setdefault(name, []).append(group_id)
    return found


class Search(msgspec.Struct, frozen=True):
    """The tools that are looked for; an empty condition is none.

    Attributes:
        categories: any of these.
        groups: in any of these.
        runtimes: any of these.
        words: all of them, in name, description or category, in upper or lower case.
        available: whether a live worker serves it; None for both.
    """

    categories: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    runtimes: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    available: bool | None = None

    def found(self, tools: Mapping[str, Tool], of: Mapping[str, list[str]]) -> Iterator[Tool]:
        """Yield the tools that meet all conditions, sorted by name."""
        for tool in tools.values():
            if self.available is not None and tool.available != self.available:
                continue
            if self.categories and tool.category not in self.categories:
                continue
            if self.groups and self.groups.isdisjoint(of.get(tool.name, ())):
                continue
            if self.runtimes and runtime_of(tool) not in self.runtimes:
                continue
            if self.words and not self._has_words(tool):
                continue
            yield tool

    def _has_words(self, tool: Tool) -> bool:
        text = f"{tool.name}\n{tool.descriptor.description}\n{tool.category}".casefold()
        return all(word in text for word in self.words)
