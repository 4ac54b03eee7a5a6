"""Read what tools say of themselves in ``x-toolbus`` to clients of the Model Context Protocol."""

from __future__ import annotations

from typing import Any

from toolbus.descriptors import ToolDescriptor

AUTO = 5.0
"""Seconds after which a call of a tool with the task ``auto`` becomes a task."""


def task_after(tool: ToolDescriptor) -> float | None:
    """Return the seconds after which a call becomes a task: 0 for at once, None for never."""
    said = tool.extensions.get("task", "never")
    if isinstance(said, bool):
        return None
    if isinstance(said, (int, float)):
        return float(said) if 0 <= said < 1e9 else None
    return {"always": 0.0, "auto": AUTO}.get(said) if isinstance(said, str) else None


def output_schema(tool: ToolDescriptor) -> dict[str, Any] | None:
    """Return the JSON Schema of the data that the tool returns, or None when it says nothing."""
    said = tool.extensions.get("output_schema")
    return said if isinstance(said, dict) else None


def destructive(tool: ToolDescriptor) -> bool | None:
    """Return whether the tool may destroy or replace something; None when it does not say."""
    if tool.effect == "read":
        return False
    said = tool.extensions.get("destructive")
    return said if isinstance(said, bool) else None
