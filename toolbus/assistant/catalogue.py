"""Documents about the tools of a bus, for models: tools, groups and runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.client.bus import ToolBus
from toolbus.client.tools.definitions import description_of
from toolbus.client.tools.grouped import groups_of, memberships, runtime_of
from toolbus.client.tools.groups import ToolGroup
from toolbus.client.tools.tool import Tool
from toolbus.results import ErrorInfo, ToolError

MOST = 100
"""Most entries of one answer."""

_MOST_LINE = 200


class Catalogue:
    """Answers what there is on a bus, as far as one user may see it.

    Args:
        bus: is open.
        user: the user, or an empty text.
    """

    def __init__(self, bus: ToolBus, user: str) -> None:
        self._tools: Mapping[str, Tool] = bus.tools.filter(user=user)
        self._stored: Mapping[str, ToolGroup] = bus.tools.catalogue.groups
        self._bus = bus
        self._user = user

    def list_tools(self, keyword: str = "", category: str = "", backend_runtime: str = "", group_id: str = "") -> dict[str, Any]:
        """Return the tools that meet all conditions that are not empty."""
        of = self._memberships()
        words = keyword.casefold().split()
        found = [
            _line(tool, of.get(tool.name, []))
            for tool in self._tools.values()
            if (not category or tool.category == category)
            and (not backend_runtime or runtime_of(tool) == backend_runtime)
            and (not group_id or group_id in of.get(tool.name, []))
            and all(word in _text(tool) for word in words)
        ]
        return _bounded("tools", found)

    def get_tool_details(self, tool_id: str) -> dict[str, Any]:
        """Return everything about one tool, with its neighbours in the groups that say in which order their tools are used.

        Raises:
            ToolError: there is no such tool; the message names similar ones.
        """
        tool = self._tools.get(tool_id)
        if tool is None:
            near = self._bus.near(tool_id, self._user)
            advice = f"did you mean {', '.join(near)}?" if near else "list_tools lists them"
            raise ToolError(ErrorInfo("not_found", "unknown_tool", f"there is no tool {tool_id!r}; {advice}"))
        groups = self._groups()
        of = self._memberships().get(tool.name, [])
        output = tool.descriptor.extensions.get("output_schema")
        return {
            **_line(tool, of),
            "description": description_of(tool),
            "input_schema": tool.parameters,
            "output_schema": output if isinstance(output, dict) else {},
            "effect": tool.descriptor.effect,
            "needs_confirmation": tool.descriptor.confirm,
            "groups": [_group(groups[each]) for each in of],
        }

    def list_groups(self, keyword: str = "") -> dict[str, Any]:
        """Return the groups whose id, name, description or category has all words of a keyword."""
        words = keyword.casefold().split()
        found = [
            _group(group)
            for group in self._groups().values()
            if all(word in f"{group.group_id}\n{group.name}\n{group.description}\n{group.category}".casefold() for word in words)
        ]
        return _bounded("groups", found)

    def list_backend_runtimes(self) -> dict[str, Any]:
        """Return what runs the tools, and how many each."""
        counts: dict[str, int] = {}
        for tool in self._tools.values():
            counts[runtime_of(tool)] = counts.get(runtime_of(tool), 0) + 1
        return _bounded(
            "backend_runtimes", [{"backend_runtime": each, "name": each, "tool_count": counts[each]} for each in sorted(counts)]
        )

    def _groups(self) -> dict[str, ToolGroup]:
        return groups_of(self._stored, self._tools)

    def _memberships(self) -> dict[str, list[str]]:
        return memberships(self._groups())


def _line(tool: Tool, groups: list[str]) -> dict[str, Any]:
    about = description_of(tool).partition("\n")[0]
    return {
        "tool_id": tool.name,
        "description": about if len(about) <= _MOST_LINE else f"{about[: _MOST_LINE - 1]}…",
        "category": tool.category,
        "backend_runtime": runtime_of(tool),
        "group_ids": groups,
        "available": tool.available,
    }


def _group(group: ToolGroup) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(group).items() if value}


def _text(tool: Tool) -> str:
    return f"{tool.name}\n{tool.descriptor.description}\n{tool.category}".casefold()


def _bounded(name: str, found: list[Any]) -> dict[str, Any]:
    """Return a list with how many there are; beyond the most the model has to ask more closely."""
    if len(found) <= MOST:
        return {name: found, "total": len(found)}
    return {name: found[:MOST], "total": len(found), "note": f"only the first {MOST} are shown; ask with a keyword or a category"}
