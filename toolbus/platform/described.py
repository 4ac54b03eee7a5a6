"""Descriptors of recorded tools, as their hosts publish them, and the pin that approves one."""

from __future__ import annotations

import time
from typing import Any

from toolbus import pins
from toolbus.descriptors import ServiceDescriptor, ToolDescriptor, parse_tool
from toolbus.platform.records import RecordedTool
from toolbus.results import DescriptorError
from toolbus.schema import mended_document, preparer_for

_MOST_DESCRIPTION = 16_384


def document_of(record: RecordedTool) -> dict[str, Any]:
    """Return the descriptor of a recorded tool in the two-tier form."""
    meta, running = record.meta, record.running
    about: dict[str, Any] = {
        "runtime": meta.backend_runtime or (record.sources[0].type if record.sources else ""),
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
