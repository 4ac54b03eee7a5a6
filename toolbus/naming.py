"""Refuse names that are not what they look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.display import visible
from toolbus.results import DescriptorError

_MOST_STEP = 40


def check_names(tool: str, arguments: Sequence[str], schema: Mapping[str, Any] | None) -> None:
    """Refuse names in a tool's descriptor that look like others, or like none.

    Raises:
        DescriptorError: the tool, one of its arguments or a property of its schema has characters that are invisible, that turn text,
            or that command a terminal.
    """
    _check(tool, "tool", "$.name")
    for index, argument in enumerate(arguments):
        _check(argument, f"argument of tool {tool!r}", f"$.arguments[{index}].name")
    if schema is not None:
        _check_properties(schema, f"argument of tool {tool!r}")


def _check(name: str, what: str, path: str) -> None:
    # The first is the quick answer for almost every name.
    if not (name.isascii() and name.isprintable()) and visible(name) != name:
        raise DescriptorError(f"the name of the {what} has invisible characters: '{visible(name)}'", path=path)


def _check_properties(schema: Mapping[str, Any], what: str) -> None:
    """Check the names of all properties, without a stack that a schema could overflow."""
    left: list[tuple[str, object]] = [("$.parameters", schema)]
    while left:
        path, part = left.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict):
                for name in properties:
                    _check(name, what, f"{path}.properties")
            left += [(f"{path}.{visible(key)[:_MOST_STEP]}", each) for key, each in part.items() if isinstance(each, (dict, list))]
        elif isinstance(part, list):
            left += [(path, each) for each in part]
