"""Definitions of tools for models, in the formats of those who serve models."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool, ToolGroup, replaced_names, wire_name
from toolbus.bus.schema.dialects import (
    ANTHROPIC,
    MOST_STRICT_TOOLS,
    MOST_UNIONS,
    OPENAI,
    Dialect,
    check_possible,
    flat,
    plain_object,
    strict,
    unions,
)
from toolbus.bus.support.display import harmless, one_line
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.lazy import without_collection
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.encoding import encode_json
from toolbus.bus.values.results import ConfigurationError, DescriptorError

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


Format = Literal["bare", "openai", "responses", "anthropic", "mcp"]

FORMATS: tuple[Format, ...] = get_args(Format)
"""All of them."""


_MOST_NAME = 80
_MOST_EXAMPLE = 400
_MOST_NOTE = 600


def usage_notes(groups: Mapping[str, ToolGroup], names: Collection[str]) -> dict[str, str]:
    """Return a sentence for each tool that a group puts into an order: the tools before and after it, and an example at the first.

    Args:
        groups: by id.
        names: the tools that the model is shown; no others are named.
    """
    found: dict[str, list[str]] = {}
    for group_id in sorted(groups):
        group = groups[group_id]
        order = [name for name in dict.fromkeys(group.usage_order) if name in names]
        title = one_line(harmless(group.name or group_id), _MOST_NAME)
        for index, name in enumerate(order):
            before, after = order[index - 1 : index], order[index + 1 : index + 2]
            said = " and ".join([*(f"after {wire_name(each)}" for each in before), *(f"before {wire_name(each)}" for each in after)])
            if said:
                found.setdefault(name, []).append(f"In the group {title!r} it is used {said}.")
        first = (order or [name for name in group.tool_ids if name in names])[:1]
        if first and group.usage_example:
            found.setdefault(first[0], []).append(
                f"Example of the group {title!r}: {one_line(harmless(group.usage_example), _MOST_EXAMPLE)}"
            )
    return {name: one_line(" ".join(notes), _MOST_NOTE) for name, notes in found.items()}


def noted(tool: Tool, note: str, most: int) -> Tool:
    """Return a tool whose description ends with a note, which stays when a description of over ``most`` characters is cut."""
    description = tool.descriptor.description
    # Room for what marks a tool as external.
    left = most - len(note) - 16
    if len(description) > left:
        description = f"{description[: left - 1]}…"
    descriptor = msgspec.structs.replace(tool.descriptor, description=f"{description}\n\n{note}" if description else note)
    return Tool(descriptor, tool.service_descriptor, available=tool.available, owner=tool.owner, digest=tool.digest)


Definition = dict[str, Any]
Key = tuple[Format, bool, bool, Hashable]
"""Format, strict, namespaces, and what was selected."""

EXTERNAL_MARK = "(external)"
# OpenAI's interfaces refuse a whole request for one longer description.
_OPENAI_DESCRIPTION = 1024
_MOST_DESCRIPTION: Mapping[Format, int] = {"openai": _OPENAI_DESCRIPTION, "responses": _OPENAI_DESCRIPTION}
_MOST_LISTS = 64
_PROSE = frozenset({"description", "title"})
# Controls in a JSON document with a backslash.
_ODD = re.compile(rb"\\u00|\\r")
_MANY = 500


def description_of(tool: Tool) -> str:
    """Return the description for the model: the publisher's, marked when the tool runs outside of the operator's control."""
    return f"{EXTERNAL_MARK} {tool.description}" if tool.descriptor.external else tool.description


_DIALECTS: Mapping[Format, Dialect] = {"openai": OPENAI, "responses": OPENAI, "anthropic": ANTHROPIC}


def definition_of(tool: Tool, format: Format, enforce: bool) -> Definition:
    """Return a tool's definition; ``bare`` has the tool's own name, and the schema as it was published.

    Raises:
        DescriptorError: the schema can't be carried, or is impossible.
    """
    if format == "bare":
        return {"name": tool.name, "description": description_of(tool), "parameters": _marked(tool.parameters)}
    if format == "mcp":
        return _of_mcp(tool)
    schema, enforced = _schema(tool, _DIALECTS[format] if enforce else None)
    name, description = wire_name(tool.name), description_of(tool)
    strictly = {"strict": True} if enforced else {}
    if format == "anthropic":
        return {"name": name, "description": description, "input_schema": schema, **strictly}
    function = {"name": name, "description": _short(description), "parameters": schema}
    if format == "openai":
        return {"type": "function", "function": {**function, **strictly}}
    # The default of ``strict`` is true here.
    return {"type": "function", **function, "strict": enforced}


def _of_mcp(tool: Tool) -> Definition:
    """Return a tool of the Model Context Protocol, with hints about its effect and the schema of its data."""
    schema = tool.parameters
    check_possible(schema)
    if "type" not in schema:
        schema = {"type": "object", **schema}
    definition: Definition = {"name": wire_name(tool.name), "description": description_of(tool), "inputSchema": _marked(schema)}
    output = output_schema(tool.descriptor)
    if output is not None:
        check_possible(output)
        definition["outputSchema"] = _marked(output)
    effect, destroys = tool.descriptor.effect, destructive(tool.descriptor)
    hints = {
        "readOnlyHint": effect == "read" if effect else None,
        "idempotentHint": effect != "once" if effect else None,
        "destructiveHint": destroys,
        "openWorldHint": tool.descriptor.external or None,
    }
    known = {name: hint for name, hint in hints.items() if hint is not None}
    return {**definition, "annotations": known} if known else definition


class Definitions:
    """Keeps what was made: each tool's definition until the tool changes, and whole lists until any tool does."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._of_tools: dict[tuple[Format, bool], dict[str, tuple[Tool, Definition | None, str]]] = {}
        self._lists: Latest[Key, tuple[int, list[Definition]]] = Latest(_MOST_LISTS)
        self._replaced: dict[str, str] = {}
        self._refused: frozenset[str] = frozenset()
        self._named = -1

    def kept(self, key: Key) -> list[Definition] | None:
        """Return the list that was made since the last change, or None."""
        found = self._lists.get(key)
        if found is None or found[0] != self._catalogue.version:
            return None
        self._lists.move_to_end(key)
        return found[1]

    def make(self, key: Key, tools: Sequence[Tool]) -> list[Definition]:
        """Make a list of these tools' definitions, and keep it.

        Raises:
            ConfigurationError: there is no such format.
        """
        wanted, enforce, namespaces, _ = key
        if wanted not in FORMATS:
            raise ConfigurationError(f"there is no format {wanted!r} (there are: {', '.join(FORMATS)})")
        of_tools = self._of_tools.setdefault((wanted, enforce), {})
        if len(of_tools) > 2 * len(self._catalogue.tools) + 1000:
            # Tools that are gone; what is still there is made anew.
            of_tools.clear()
        self._name()
        refused = frozenset[str]() if wanted == "bare" else self._refused
        notes = usage_notes(self._catalogue.groups, {tool.name for tool in tools}) if self._catalogue.groups else {}
        found: list[tuple[Tool, Definition]] = []
        with without_collection(len(tools) > _MANY):
            for tool in tools:
                name = tool.descriptor.name
                known = of_tools.get(name)
                note = notes.get(name, "")
                if known is None or known[0] is not tool or known[2] != note:
                    shown = noted(tool, note, _MOST_DESCRIPTION.get(wanted, sys.maxsize)) if note else tool
                    known = of_tools[name] = (tool, _carried(shown, wanted, enforce), note)
                if known[1] is not None and name not in refused:
                    found.append((tool, known[1]))
        if wanted == "anthropic" and enforce:
            found = _within_limits(found)
        listed = _in_namespaces(found) if wanted == "responses" and namespaces else [definition for _, definition in found]
        self._lists[key] = (self._catalogue.version, listed)
        return listed

    def named(self, wire: str) -> str | None:
        """Return the tool that a replaced name stands for."""
        self._name()
        return self._replaced.get(wire)

    def _name(self) -> None:
        version = self._catalogue.version
        if self._named == version:
            return
        self._replaced, refused = replaced_names(self._catalogue.names())
        for name in refused.keys() - self._refused:
            telemetry.log.warning("definition.name_refused", tool=name, holder=refused[name])
        self._refused, self._named = frozenset(refused), version


def _carried(tool: Tool, format: Format, enforce: bool) -> Definition | None:
    try:
        return definition_of(tool, format, enforce)
    except DescriptorError as error:
        telemetry.log.warning("definition.set_aside", tool=tool.name, service=tool.service, format=format, error=str(error))
        return None


def _marked(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what would be invisible to a person written out in its descriptions."""
    document = encode_json(schema)
    if document.isascii() and b"\x7f" not in document and (b"\\" not in document or _ODD.search(document) is None):
        return schema
    marked: dict[str, Any] = _with_marks(schema, "")
    return marked


def _with_marks(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return harmless(value) if key in _PROSE else value
    if isinstance(value, dict):
        return {name: _with_marks(each, name) for name, each in value.items()}
    return [_with_marks(each, "") for each in value] if isinstance(value, list) else value


def _schema(tool: Tool, dialect: Dialect | None) -> tuple[dict[str, Any], bool]:
    """Return the schema for a provider, and whether the provider can enforce it."""
    schema = tool.descriptor.schema or {"type": "object"}
    enforceable = None if dialect is None else flat(schema)
    if enforceable is not None:
        # Its descriptions are plain.
        return enforceable, True
    check_possible(schema)
    if dialect is not None:
        enforceable = strict(schema, dialect)
    return (_marked(plain_object(schema)), False) if enforceable is None else (_marked(enforceable), True)


def _short(description: str) -> str:
    return description if len(description) <= _OPENAI_DESCRIPTION else f"{description[: _OPENAI_DESCRIPTION - 1]}…"


def _within_limits(made: Sequence[tuple[Tool, Definition]]) -> list[tuple[Tool, Definition]]:
    """Return the definitions for one request to Anthropic: those first in order are strict, as far as its limits on all of them go."""
    tools, left = MOST_STRICT_TOOLS, MOST_UNIONS
    found: list[tuple[Tool, Definition]] = []
    for tool, definition in made:
        within = tools > 0 and "strict" in definition and (counted := unions(definition["input_schema"])) <= left
        if within:
            tools, left = tools - 1, left - counted
        found.append((tool, {key: value for key, value in definition.items() if within or key != "strict"}))
    return found


def _in_namespaces(made: Sequence[tuple[Tool, Definition]]) -> list[Definition]:
    """Tools with groups in a namespace named after their first, sorted; then the others."""
    namespaces: dict[str, list[Definition]] = {}
    others: list[Definition] = []
    for tool, definition in made:
        (namespaces.setdefault(tool.groups[0], []) if tool.groups else others).append(definition)
    return [
        {"type": "namespace", "name": wire_name(group), "description": f"Tools of the group {group!r}.", "tools": namespaces[group]}
        for group in sorted(namespaces)
    ] + others
