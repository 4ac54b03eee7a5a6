"""Checks of records beyond their types: what could not be served, called or shown is refused, with the field's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolbus.client.tools.groups import ToolGroup
from toolbus.effects import effect_flaw
from toolbus.naming import GROUP_ID, TOOL_NAME
from toolbus.platform.described import descriptor_of
from toolbus.platform.records import BackendRuntime, RecordedTool, Running, ToolMeta
from toolbus.platform.source_checks import check_source
from toolbus.platform.values import check_id, check_number, check_text, wrong
from toolbus.results import DescriptorError
from toolbus.schema import check_possible

_DIGEST = re.compile(r"[0-9a-f]{0,128}")
_MOST_NAME = 200
_MOST_DESCRIPTION = 20_000
_MOST_SECONDS = 30 * 86_400.0
_MOST_SOURCES = 16
# Least and most of each number of ``Running``.
_RUNNING = {
    "idle_stop": (0, _MOST_SECONDS),
    "keep_warm": (0, 64),
    "instances": (1, 64),
    "concurrency": (1, 10_000),
    "health_every": (0.1, 86_400),
    "stop_within": (0, 600),
    "restarts": (0, 1_000),
    "timeout": (0, _MOST_SECONDS),
}


def check_recorded(tool: RecordedTool) -> RecordedTool:
    """Check a tool's record; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_meta(tool.meta, "$.meta")
    if not tool.sources:
        raise DescriptorError("there is no place where it can run", path="$.sources")
    if len(tool.sources) > _MOST_SOURCES:
        raise DescriptorError(f"there are more than {_MOST_SOURCES} sources", path="$.sources")
    for index, source in enumerate(tool.sources):
        check_source(source, f"$.sources[{index}]")
    _check_running(tool.running)
    check_number(tool.revision, 1, 1e9, "$.revision")
    if _DIGEST.fullmatch(tool.code) is None:
        raise wrong(tool.code, "a digest in hexadecimal", "$.code")
    check_text(tool.made_by, "$.made_by", _MOST_NAME)
    # What no host could publish is not recorded.
    descriptor_of(tool)
    return tool


def check_meta(meta: ToolMeta, path: str) -> None:
    """Check what is told of a tool.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_id(meta.tool_id, f"{path}.tool_id")
    for name in ("name", "category"):
        check_text(getattr(meta, name), f"{path}.{name}", _MOST_NAME)
    check_text(meta.description, f"{path}.description", _MOST_DESCRIPTION)
    if meta.backend_runtime:
        check_id(meta.backend_runtime, f"{path}.backend_runtime")
    for index, group in enumerate(meta.group_ids):
        check_id(group, f"{path}.group_ids[{index}]")
    for index, slug in enumerate(meta.tool_slug_ids):
        check_text(slug, f"{path}.tool_slug_ids[{index}]", _MOST_NAME)
    if meta.status not in {"active", "inactive"}:
        raise wrong(meta.status, "active or inactive", f"{path}.status")
    _check_schema(meta.input_schema, f"{path}.input_schema")
    _check_schema(meta.output_schema, f"{path}.output_schema")


def check_group(group: ToolGroup) -> ToolGroup:
    """Check a group; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    if GROUP_ID.match(group.group_id) is None:
        raise wrong(group.group_id, "1 to 64 letters, digits, '_', '.' and '-', and not '.' or '..'", "$.group_id")
    for name in ("name", "category"):
        check_text(getattr(group, name), f"$.{name}", _MOST_NAME)
    for name in ("description", "usage_example"):
        check_text(getattr(group, name), f"$.{name}", _MOST_DESCRIPTION)
    for index, tool in enumerate(group.tool_ids):
        if TOOL_NAME.match(tool) is None:
            raise wrong(tool, "the name of a tool: 1 to 128 characters without spaces, slashes or braces", f"$.tool_ids[{index}]")
    for index, tool in enumerate(group.usage_order):
        if tool not in group.tool_ids:
            raise DescriptorError(f"{tool!r} is not among tool_ids", path=f"$.usage_order[{index}]")
    return group


def check_runtime(runtime: BackendRuntime) -> BackendRuntime:
    """Check a backend runtime; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_id(runtime.backend_runtime, "$.backend_runtime")
    check_text(runtime.name, "$.name", _MOST_NAME)
    check_text(runtime.description, "$.description", _MOST_DESCRIPTION)
    return runtime


def _check_running(running: Running) -> None:
    for name, (least, most) in _RUNNING.items():
        check_number(getattr(running, name), least, most, f"$.running.{name}")
    if running.keep_warm > running.instances:
        raise DescriptorError(f"{running.keep_warm} are kept warm of at most {running.instances} instances", path="$.running.keep_warm")
    flaw = effect_flaw(running.effect)
    if flaw:
        raise DescriptorError(flaw, path="$.running.effect")


def _check_schema(schema: Mapping[str, Any], path: str) -> None:
    try:
        check_possible(schema)
    except DescriptorError as error:
        raise DescriptorError(str(error).rpartition(" - at `")[0] or str(error), path=path) from None
