"""Entries of a ``chat2graph.yml`` as they are once read: each with its path in the file."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolEntry(msgspec.Struct, frozen=True):
    """A class of tools in a module."""

    path: str
    name: str
    module: str
    description: str


class GroupEntry(msgspec.Struct, frozen=True):
    """An MCP server, with its transport as it is written."""

    path: str
    name: str
    transport: dict[str, Any]


class ActionEntry(msgspec.Struct, frozen=True):
    """An action; ``tools`` are names of tools and MCP servers."""

    path: str
    id: str
    name: str
    description: str
    tools: tuple[str, ...]


class OperatorEntry(msgspec.Struct, frozen=True):
    """An operator; ``actions`` are names. Operators have no name of their own, so it is the expert's, with a number if it has several."""

    path: str
    id: str
    instruction: str
    output_schema: str
    actions: tuple[str, ...]


class ExpertEntry(msgspec.Struct, frozen=True):
    """An expert; ``operators`` are ids, in the order of its workflow."""

    name: str
    description: str
    operators: tuple[str, ...]


class Config(msgspec.Struct, frozen=True):
    """A file's entries that can be used; ``chains`` are names of actions."""

    name: str
    description: str
    tools: tuple[ToolEntry, ...]
    groups: tuple[GroupEntry, ...]
    actions: tuple[ActionEntry, ...]
    chains: tuple[tuple[str, ...], ...]
    operators: tuple[OperatorEntry, ...]
    experts: tuple[ExpertEntry, ...]
