"""Find recorded tools by category, keyword, backend runtime and group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.schema.arguments import preparer_for
from toolbus.bus.schema.mend import mended_document
from toolbus.bus.values import pins
from toolbus.bus.values.descriptors import ServiceDescriptor, ToolDescriptor, parse_tool
from toolbus.bus.values.results import DescriptorError
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
        return [
            tool
            for _, tool in sorted(tools.items())
            if self.category in {"", tool.meta.category}
            and self.backend_runtime in {"", runtime_of(tool)}
            and (not self.group or self.group in groups_of(tool, groups))
            and all(word in f"{tool.tool_id}\n{tool.meta.name}\n{tool.meta.description}\n{tool.meta.category}".casefold() for word in words)
        ]


def runtime_of(tool: RecordedTool) -> str:
    """Return a tool's backend runtime; that of its first source's type when its record does not say."""
    return tool.meta.backend_runtime or (tool.sources[0].type if tool.sources else "")


def groups_of(tool: RecordedTool, groups: Mapping[str, ToolGroup]) -> list[str]:
    """Return the ids of the groups that a tool is in, sorted: those that it names, and those that name it."""
    return sorted({*tool.meta.group_ids, *(name for name, group in groups.items() if tool.tool_id in group.tool_ids)})


_MOST_DESCRIPTION = 16_384


def document_of(record: RecordedTool) -> dict[str, Any]:
    """Return the descriptor of a recorded tool in the two-tier form."""
    meta, running = record.meta, record.running
    about: dict[str, Any] = {
        "runtime": runtime_of(record),
        "output_schema": meta.output_schema,
        "title": meta.name,
        "revision": record.revision,
    }
    description = meta.description.strip() or meta.name or meta.tool_id.replace("_", " ")
    document: dict[str, Any] = {
        "name": meta.tool_id,
        "description": description if len(description) <= _MOST_DESCRIPTION else f"{description[: _MOST_DESCRIPTION - 1]}…",
        "parameters": meta.input_schema or {"type": "object"},
        "effect": running.effect,
        "groups": list(meta.group_ids),
        "category": meta.category,
        "timeout": running.timeout,
        "x-toolbus": {key: value for key, value in about.items() if value},
    }
    return {key: value for key, value in document.items() if value}


def descriptor_of(record: RecordedTool) -> ToolDescriptor:
    """Return a recorded tool's descriptor as a host publishes it.

    Raises:
        DescriptorError: no host can publish it; ``path`` names the field of the record.
    """
    try:
        document, _ = mended_document(document_of(record))
        tool = parse_tool({"effect": "", **document}, ServiceDescriptor(id=record.tool_id))
        preparer_for(tool)
    except DescriptorError as error:
        message = str(error).removesuffix(f" - at `{error.path}`")
        raise DescriptorError(message, path=error.path.replace("$.parameters", "$.meta.input_schema", 1)) from None
    return tool


def pin_of(record: RecordedTool, *, by: str = "", reason: str = "") -> bytes:
    """Return the pin that approves a recorded tool as a host publishes it.

    Raises:
        DescriptorError: no host can publish it.
    """
    return pins.encoded(pins.approved(descriptor_of(record), by=by, reason=reason, at=time.time()))
