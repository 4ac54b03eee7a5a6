"""``ToolView``: the live tools, or some of them, and their definitions for models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.definitions import Definitions, Format
from toolbus.bus.client.tools.tool import Subscription, Tool, ToolChange, is_replaced


class Accepting(Protocol):
    """Says which tools are selected; equal ones select the same."""

    def accepts(self, tool: Tool) -> bool:
        """Return whether a tool is selected."""

    def __hash__(self) -> int: ...


class Selection(msgspec.Struct, frozen=True):
    """Some of the tools: in any of these groups, of any of these categories, with any of these names; None is no condition."""

    groups: frozenset[str] | None = None
    categories: frozenset[str] | None = None
    names: frozenset[str] | None = None

    def accepts(self, tool: Tool) -> bool:
        """Return whether a tool is selected."""
        return (
            (self.names is None or tool.name in self.names)
            and (self.categories is None or tool.category in self.categories)
            and (self.groups is None or not self.groups.isdisjoint(tool.groups))
        )


class ToolView(Mapping[str, Tool]):
    """A live mapping from name to tool, sorted by name; ``filter`` narrows it and stays live."""

    def __init__(
        self,
        catalogue: Catalogue,
        selections: tuple[Accepting, ...] = (),
        definitions: Definitions | None = None,
        user: str | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._selections = selections
        self._user = user
        self._definitions = Definitions(catalogue) if definitions is None else definitions

    def __getitem__(self, name: str) -> Tool:
        tool = self._catalogue.tools[name]
        if not self._accepts(tool):
            raise KeyError(name)
        return tool

    def __iter__(self) -> Iterator[str]:
        tools = self._catalogue.tools
        narrow = self._narrows
        return (name for name in self._catalogue.names() if not narrow or self._accepts(tools[name]))

    def __len__(self) -> int:
        return sum(1 for _ in self) if self._narrows else len(self._catalogue.tools)

    def __repr__(self) -> str:
        return f"<tools: {', '.join(self)}>"

    def filter(
        self,
        *,
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        names: Collection[str] | None = None,
        user: str | None = None,
    ) -> ToolView:
        """Return a live view of the tools in any of these groups, of any of these categories, with any of these names.

        Args:
            groups: groups, or the name of one.
            categories: categories, or the name of one.
            names: tools, or the name of one.
            user: leave out tools that are for other tenants.
        """
        selections, selection = self._selections, Selection(_frozen(groups), _frozen(categories), _frozen(names))
        if selection != Selection():
            selections = (*selections, selection)
        return ToolView(self._catalogue, selections, self._definitions, self._user if user is None else user)

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue that the view shows."""
        return self._catalogue

    def within(self, selection: Accepting) -> tuple[Catalogue, tuple[Accepting, ...], Definitions, str | None]:
        """Return the arguments for a view of another class that is narrower by a selection."""
        return self._catalogue, (*self._selections, selection), self._definitions, self._user

    def definitions(self, format: Format = "bare", *, strict: bool = False, namespaces: bool = True) -> list[dict[str, Any]]:
        """Definitions of the available tools for a model, sorted by name; asking again costs nothing until a tool changes.

        A tool that the format can't carry is left out with a warning. The list is the caller's own; the definitions in it are
        shared, so copy what is to be changed.

        Args:
            format: ``bare`` (``{name, description, parameters}``), ``openai`` (chat), ``responses``, ``anthropic`` or ``mcp``.
            strict: say schemas so that a provider can enforce them, wherever that is possible (not in ``bare`` and ``mcp``).
            namespaces: gather the tools of a group in a namespace (``responses`` alone).

        Raises:
            ConfigurationError: there is no such format.
        """
        # Users who see the same share what was made for one of them.
        key = (format, strict, namespaces, (self._selections, self._user if self._catalogue.restricted() else None))
        kept = self._definitions.kept(key)
        if kept is None:
            tools = [tool for tool in map(self._catalogue.tools.__getitem__, self) if tool.available]
            kept = self._definitions.make(key, tools)
        return kept.copy()

    def by_wire_name(self, name: str) -> Tool | None:
        """Return the tool that a model means: by the name in its definition, or by its own."""
        own = (self._definitions.named(name) or name) if is_replaced(name) else name
        tool = self._catalogue.tools.get(own)
        return tool if tool is not None and self._accepts(tool) else None

    def former(self, name: str) -> Tool | None:
        """Return the tool that a model means and that is gone, as it was."""
        own = (self._definitions.named(name) or name) if is_replaced(name) else name
        found = self._catalogue.former.get(own)
        return found[0] if found is not None and self._accepts(found[0]) else None

    def subscribe(self) -> Subscription:
        """Return a subscription to changes of the whole catalogue from now on; ``changes`` is the usual way to read them."""
        return self._catalogue.subscription()

    async def changes(self) -> AsyncIterator[ToolChange]:
        """Yield changes from now on, until the bus closes. A slow reader gets each tool's latest change only."""
        with self.subscribe() as subscription:
            async for change in subscription:
                if self._accepts(change.tool):
                    yield change

    @property
    def _narrows(self) -> bool:
        return bool(self._selections) or (self._user is not None and self._catalogue.restricted())

    def _accepts(self, tool: Tool) -> bool:
        if self._user is not None and tool.descriptor.tenants and not tool.is_for(self._user):
            return False
        return all(selection.accepts(tool) for selection in self._selections) if self._selections else True


def _frozen(names: Collection[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    return frozenset({names} if isinstance(names, str) else names)
