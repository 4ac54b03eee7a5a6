"""Find recorded tools by category, keyword, backend runtime and group."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolbus.client.tools.groups import ToolGroup
from toolbus.platform.records import RecordedTool


class Search(msgspec.Struct, frozen=True):
    """Conditions that a tool meets all of; an empty one is none.

    Attributes:
        category: its category.
        backend_runtime: see ``runtime_of``.
        group: id of a group that it is in.
        keyword: each word of it is in the tool's id, title, description or category, in upper or lower case.
    """

    category: str = ""
    backend_runtime: str = ""
    group: str = ""
    keyword: str = ""

    def found(self, tools: Mapping[str, RecordedTool], groups: Mapping[str, ToolGroup]) -> list[RecordedTool]:
        """Return the tools that meet the conditions, by id."""
        words = self.keyword.casefold().split()
        return [tool for _, tool in sorted(tools.items()) if self._is_met(tool, groups, words)]

    def _is_met(self, tool: RecordedTool, groups: Mapping[str, ToolGroup], words: list[str]) -> bool:
        if self.category and tool.meta.category != self.category:
            return False
        if self.backend_runtime and runtime_of(tool) != self.backend_runtime:
            return False
        if self.group and self.group not in groups_of(tool, groups):
            return False
        meta = tool.meta
        text = f"{meta.tool_id}\n{meta.name}\n{meta.description}\n{meta.category}".casefold()
        return all(word in text for word in words)


def runtime_of(tool: RecordedTool) -> str:
    """Return a tool's backend runtime; that of its first source's type when its record does not say."""
    return tool.meta.backend_runtime or (tool.sources[0].type if tool.sources else "")


def groups_of(tool: RecordedTool, groups: Mapping[str, ToolGroup]) -> list[str]:
    """Return the ids of the groups that a tool is in, sorted: those that it names, and those that name it."""
    return sorted({*tool.meta.group_ids, *(name for name, group in groups.items() if tool.tool_id in group.tool_ids)})
