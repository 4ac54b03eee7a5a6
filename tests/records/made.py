"""Records for tests."""

from __future__ import annotations

from typing import Any

from toolbus.platform.records import RecordedTool, ToolMeta, ToolSource


def recorded(tool_id: str = "image_stitcher", **fields: Any) -> RecordedTool:
    """Return a local tool's record; ``fields`` are those of its description, or ``sources``, ``running``, …"""
    own = {name: fields.pop(name) for name in RecordedTool.__struct_fields__ if name in fields}
    given = {"sources": (ToolSource(type="local", host_dir=f"tools/{tool_id}"),), **own}
    meta = ToolMeta(
        **{"tool_id": tool_id, "name": "Image stitcher", "description": "Put images side by side.", "category": "media", **fields}
    )
    return RecordedTool(meta=meta, **given)
