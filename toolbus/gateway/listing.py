"""Describe tools for programs, and find them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus.client.tools.definitions import description_of
from toolbus.client.tools.grouped import runtime_of
from toolbus.client.tools.tool import Tool


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


class Search(msgspec.Struct, frozen=True):
    """The tools that are looked for; an empty condition is none.

    Attributes:
        names: any of these.
        categories: any of these.
        groups: in any of these.
        runtimes: any of these.
        words: all of them, in name, description or category, in upper or lower case.
        available: whether a live worker serves it; None for both.
    """

    names: frozenset[str] = frozenset()
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
            if self.names and tool.name not in self.names:
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
