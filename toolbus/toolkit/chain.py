"""Build a toolkit graph from chains, which list actions and their tools in sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self, TypeAlias

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup
from toolbus.toolkit.service import ToolkitService

Link: TypeAlias = Action | Tool | ToolGroup | tuple["Link", ...]
"""A part of a chain: an action, something it calls, a tuple of those, or a tuple that starts with an action and is a chain itself."""

_Step: TypeAlias = tuple[Action, tuple[Tool | ToolGroup, ...]]


class ToolkitWrapper:
    """Builds a graph from chains.

    Args:
        toolkit: the graph to add to; a new one when left out.
    """

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        self._service = ToolkitService(toolkit)

    @property
    def toolkit(self) -> Toolkit:
        """The graph."""
        return self._service.get_toolkit()

    @property
    def service(self) -> ToolkitService:
        """The service that adds to the graph and recommends from it."""
        return self._service

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools of the graph that run in this process, for a worker of the module that holds the wrapper."""
        return self._service.__toolbus_tools__()

    def chain(self, *items: Link) -> Self:
        """Add a chain, see ``add_chain``; return ``self``, so that another call can follow."""
        add_chain(self._service, *items)
        return self


def add_chain(service: ToolkitService, *items: Link) -> None:
    """Add a sequence of actions, each with the tools and groups listed after it, with scores of 1.0.

    In ``action, tool, action, (tool, group), action``, each action follows the one before it, and calls the tool, group or tuple
    of them that stands after it. A tuple that starts with an action is part of the chain. After a tool, a group or a tuple of
    them only an action may follow. Existing edges keep their scores.

    Raises:
        ToolkitError: the items are no valid chain (it is a ValueError); nothing was changed.
    """
    toolkit = service.get_toolkit()
    before: Action | None = None
    for action, called in _steps(_flat(items)):
        previous = [] if before is None else [(before, toolkit.get_score(before.id, action.id))]
        service.add_action(action, next_actions=[], prev_actions=previous)
        for each in called:
            caller = [(action, toolkit.get_score(action.id, each.id))]
            if isinstance(each, Tool):
                service.add_tool(each, connected_actions=caller)
            else:
                service.add_tool_group(each, connected_actions=caller)
        before = action


def _flat(items: Iterable[Link]) -> Iterator[Link]:
    """Yield the items of a chain with nested chains unpacked."""
    for item in items:
        if isinstance(item, tuple) and item and isinstance(item[0], Action):
            yield from _flat(item)
        else:
            yield item


def _steps(items: Iterable[Link]) -> list[_Step]:
    steps: list[_Step] = []
    last: Link | None = None
    for item in items:
        if isinstance(item, Action):
            steps.append((item, ()))
        elif not steps:
            raise ToolkitError(f"Chain must start with an Action; this one starts with {_named(item)}")
        elif not isinstance(last, Action):
            raise ToolkitError(f"{_named(last)} can only be followed by an Action, not by {_named(item)}")
        else:
            steps[-1] = (steps[-1][0], _called(item))
        last = item
    return steps


def _called(item: Link) -> tuple[Tool | ToolGroup, ...]:
    """Return the tools and groups that an action calls through this part of the chain."""
    several = item if isinstance(item, tuple) else (item,)
    if not several:
        raise ToolkitError("A parallel tuple is empty; put Tools or ToolGroups into it, or leave it out")
    for each in several:
        if isinstance(each, Tool | ToolGroup):
            continue
        if isinstance(item, tuple):
            raise ToolkitError(f"Parallel connection tuples can only contain Tools or ToolGroups, not {_named(each)}")
        raise ToolkitError(f"A chain is made of Actions, Tools, ToolGroups and tuples of them, not of {_named(each)}")
    return tuple(each for each in several if isinstance(each, Tool | ToolGroup))


def _named(item: object) -> str:
    if isinstance(item, tuple):
        return "a parallel tuple"
    return f"the {type_name(item)} {item.id!r}" if isinstance(item, Action | Tool | ToolGroup) else f"a {type_name(item)}"
