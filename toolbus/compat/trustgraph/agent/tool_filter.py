"""Filter tools by group and state, as TrustGraph's agents do.

A tool without ``group`` is in the group ``default``, and a request without groups asks for that one; ``*`` asks for every group.
A tool is offered in its ``applicable-states``, or in every state without them; ``state`` is the state after it has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from toolbus.bus.client.tools.tool import Tool

T = TypeVar("T")

DEFAULT_GROUP = "default"
FIRST_STATE = "undefined"
EVERY = "*"


def filter_tools_by_group_and_state(
    tools: Mapping[str, T], requested_groups: Iterable[str] | None = None, current_state: str | None = None
) -> dict[str, T]:
    """Return the tools that are in one of the groups and are offered in the state.

    Args:
        tools: by name: tools of a bus (``bus.tools``), or objects whose ``config`` is the tool's document.
        requested_groups: ``default`` when None.
        current_state: ``undefined`` when empty.
    """
    groups = [DEFAULT_GROUP] if requested_groups is None else list(requested_groups)
    return {name: tool for name, tool in tools.items() if _is_tool_available(tool, groups, current_state or FIRST_STATE)}


def get_next_state(tool: object, current_state: str) -> str:
    """Return the state after a tool has run: its ``state``, or the current one when it has none."""
    return str(_config(tool).get("state") or current_state)


def validate_tool_config(config: Mapping[str, Any]) -> None:
    """Check ``group``, ``state`` and ``applicable-states`` of a tool's document.

    Raises:
        ValueError: one of them has another type.
    """
    for key in ("group", "applicable-states"):
        if key in config and not isinstance(config[key], list):
            raise ValueError(f"a tool's {key!r} field must be a list of strings")
        if not all(isinstance(each, str) for each in config.get(key, ())):
            raise ValueError(f"{'All group names' if key == 'group' else 'All state names'} must be strings")
    if "state" in config and not isinstance(config["state"], str):
        raise ValueError("a tool's 'state' field must be a string")


def _is_tool_available(tool: object, requested_groups: Iterable[str], current_state: str) -> bool:
    config, wanted = _config(tool), set(requested_groups)
    groups, states = _listed(config.get("group", [DEFAULT_GROUP])), _listed(config.get("applicable-states", [EVERY]))
    return (EVERY in wanted or not wanted.isdisjoint(groups)) and (EVERY in states or current_state in states)


def _config(tool: object) -> Mapping[str, Any]:
    if not isinstance(tool, Tool):
        return getattr(tool, "config", None) or {}
    return {**({"group": list(tool.groups)} if tool.groups else {}), **tool.descriptor.extensions}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
