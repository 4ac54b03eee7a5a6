"""Build a toolkit graph: by services that add and remove, by chains, and from tools that exist already."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from toolbus.bus import telemetry
from toolbus.bus.client.tools.tool import Tool as BusTool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ToolkitError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import ToolObject
from toolbus.bus.worker.service import ToolService
from toolbus.toolkit.graph import (
    Action,
    Item,
    Tool,
    ToolGroup,
    Toolkit,
    a,
    check_score,
    expect,
    kind_of,
    listed,
    recommend_subgraph,
    recommend_tools_actions,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scored = tuple[Action, float]
"""An action, and the score of an edge from it or to it."""


class ToolkitService:
    """Adds and removes actions, tools and groups with their edges, and recommends from the graph.

    Args:
        toolkit: the graph to work on; a new one when left out.
    """

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        if toolkit is not None:
            expect("toolkit", toolkit, Toolkit)
        self._toolkit = Toolkit() if toolkit is None else toolkit
        # Actions whose next action is not in the graph yet, by that action's id.
        self._awaited: dict[str, list[str]] = {}

    def get_toolkit(self) -> Toolkit:
        """Return the graph itself."""
        return self._toolkit

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools of the graph that run in this process, for a worker of the module that holds the service."""
        return self._toolkit.__toolbus_tools__()

    # -- adding -----------------------------------------------------------------------------------

    def add_action(self, action: Action, next_actions: Sequence[Scored] = (), prev_actions: Sequence[Scored] = ()) -> None:
        """Add an action, unless it is in the graph, with its Next edges; a score for an existing edge replaces the edge's score.

        The actions of ``next_action_ids`` follow it with a score of 1.0; those that are not in the graph yet follow as soon as they
        are added. Its ``tools`` are added with a score of 1.0, too. Scored actions that are not in the graph are skipped with a warning.

        Raises:
            ToolkitError: an argument is of another kind, a score is not within 0 and 1, or the id belongs to a tool or group; nothing was
                changed.
        """
        expect("action", action, Action)
        following, before = self._checked(action, next_actions=next_actions, prev_actions=prev_actions)
        self._put(action.id, action)
        for each, score in self._known(following, action.id):
            self._toolkit.add_edge(action.id, each, score)
        for each, score in self._known(before, action.id):
            self._toolkit.add_edge(each, action.id, score)
        self._follow_ids(action)
        for tool in action.tools:
            self.add_tool(tool, connected_actions=[(action, self._toolkit.get_score(action.id, tool.id))])

    def add_tool(self, tool: Tool, connected_actions: Sequence[Scored] = ()) -> None:
        """Add a tool, unless it is in the graph, with a Call edge from each of these actions.

        An action that is not in the graph is skipped with a warning. A tool that no edge leads to is removed with another warning.

        Raises:
            ToolkitError: an argument is of another kind, a score is not within 0 and 1, or the id belongs to an action or group; nothing
                was changed.
        """
        expect("tool", tool, Tool)
        (callers,) = self._checked(tool, connected_actions=connected_actions)
        self._put(tool.id, tool)
        for action, score in self._known(callers, tool.id):
            self._toolkit.add_edge(action, tool.id, score)
        if not self._toolkit.predecessors(tool.id):
            telemetry.log.warning("toolkit.tool_unreachable", tool=tool.id)
            self._toolkit.remove_vertex(tool.id)

    def add_tool_group(self, tool_group: ToolGroup, connected_actions: Sequence[Scored] = ()) -> None:
        """Add a group with its tools, with a Call edge from each of these actions to the group.

        An existing group with that id is replaced: tools that stay keep their edges and scores, and tools that are no longer in it
        are removed unless an action or another group leads to them. Actions that are not in the graph are skipped with a warning.

        Raises:
            ToolkitError: an argument is of another kind, a score is not within 0 and 1, or an id belongs to something of another kind;
                nothing was changed.
        """
        expect("tool_group", tool_group, ToolGroup)
        (callers,) = self._checked(tool_group, connected_actions=connected_actions)
        self._toolkit.add_vertex(tool_group.id, data=tool_group)
        for action, score in self._known(callers, tool_group.id):
            self._toolkit.add_edge(action, tool_group.id, score)
        self._fill(tool_group)
        if not self._toolkit.predecessors(tool_group.id):
            telemetry.log.warning("toolkit.group_unreachable", group=tool_group.id)

    # -- reading and removing ---------------------------------------------------------------------

    def get_action(self, action_id: str) -> Action:
        """Return a copy of an action.

        Raises:
            ToolkitError: there is no such action (it is a ValueError).
        """
        action = self._toolkit.get_action(action_id)
        if action is None:
            raise ToolkitError(f"there is no action {action_id!r} in the toolkit graph")
        return action

    def remove_tool(self, tool_id: str) -> None:
        """Remove a tool, and its group when it was the last tool there; do nothing when there is no such tool.

        Raises:
            ToolkitError: the id belongs to an action or a group.
        """
        self._remove(tool_id, "tool")

    def remove_action(self, action_id: str) -> None:
        """Remove an action, and the tools that nothing else leads to; do nothing when there is no such action.

        Raises:
            ToolkitError: the id belongs to a tool or a group.
        """
        self._remove(action_id, "action")

    def remove_tool_group(self, group_id: str) -> None:
        """Remove a group and its tools; do nothing when there is no such group.

        Raises:
            ToolkitError: the id belongs to an action or a tool.
        """
        self._remove(group_id, "group")

    # -- recommending -----------------------------------------------------------------------------

    def recommend_subgraph(self, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0) -> Toolkit:
        """Return the part of the graph that fits these actions; see ``toolbus.toolkit.recommend_subgraph``."""
        return recommend_subgraph(self._toolkit, actions, threshold, hops)

    def recommend_tools_actions(
        self, actions: Iterable[Action | str], threshold: float = 0.5, hops: int = 0
    ) -> tuple[list[Tool], list[Action]]:
        """Return the tools and actions that fit these actions; see ``toolbus.toolkit.recommend_tools_actions``."""
        return recommend_tools_actions(self._toolkit, actions, threshold, hops)

    def visualize(self, graph: Toolkit, title: str, show: bool = False) -> Figure:
        """Draw a graph; see ``toolbus.toolkit.draw.visualize``."""
        from toolbus.toolkit.draw import visualize  # noqa: PLC0415 - drawing needs matplotlib, the rest does not

        return visualize(graph, title, show=show)

    # -- inside -----------------------------------------------------------------------------------

    def _checked(self, item: Item, *more: Item, **scored: Iterable[Scored]) -> list[list[Scored]]:
        """Refuse wrong pairs, scores and ids before anything is changed; return the pairs."""
        found = [_pairs(name, each) for name, each in scored.items()]
        for action, score in chain(*found):
            check_score(score, f"the score between {item.id!r} and the action {action.id!r}")
        self._check_ids([item, *more])
        return found

    def _check_ids(self, items: Iterable[Item]) -> None:
        """Refuse items, and tools of theirs, whose ids belong to something of another kind, in the graph or among themselves."""
        kinds: dict[str, str] = {}
        for item in items:
            tools = [] if isinstance(item, Tool) else listed(f"the tools of {item.id!r}", item.tools, Tool)
            for each in (item, *tools):
                there = kinds.setdefault(each.id, kind_of(self._toolkit.item(each.id)) or kind_of(each))
                if there != kind_of(each):
                    raise ToolkitError(f"vertex {each.id!r} is {a(there)} already; give the {kind_of(each)} another id")

    def _known(self, scored: Iterable[Scored], vertex: str) -> list[tuple[str, float]]:
        """Return ids and scores of the actions that are in the graph; warn about each other one."""
        known: list[tuple[str, float]] = []
        for action, score in scored:
            if isinstance(self._toolkit.item(action.id), Action):
                known.append((action.id, score))
            else:
                telemetry.log.warning("toolkit.action_unknown", action=action.id, vertex=vertex)
        return known

    def _put(self, id: str, item: Item) -> None:
        if self._toolkit.item(id) is None:
            self._toolkit.add_vertex(id, data=item)

    def _follow_ids(self, action: Action) -> None:
        for following in action.next_action_ids:
            if isinstance(self._toolkit.item(following), Action):
                self._toolkit.add_edge(action.id, following)
            else:
                self._awaited.setdefault(following, []).append(action.id)
        for waiting in self._awaited.pop(action.id, ()):
            before = self._toolkit.item(waiting)
            if isinstance(before, Action) and action.id in before.next_action_ids:
                self._toolkit.add_edge(waiting, action.id)

    def _fill(self, group: ToolGroup) -> None:
        toolkit, wanted = self._toolkit, {tool.id: tool for tool in group.tools}
        for member in toolkit.successors(group.id):
            if member not in wanted:
                toolkit.remove_edge(group.id, member)
                if not toolkit.predecessors(member):
                    toolkit.remove_vertex(member)
        for member, tool in wanted.items():
            toolkit.add_vertex(member, data=tool)
            toolkit.add_edge(group.id, member)

    def _remove(self, id: str, kind: str) -> None:
        expect(f"the id of {a(kind)}", id, str)
        there = kind_of(self._toolkit.item(id))
        if there and there != kind:
            raise ToolkitError(f"{id!r} is {a(there)}, not {a(kind)}")
        self._toolkit.remove_vertex(id)


def _pairs(what: str, given: Iterable[Scored]) -> list[Scored]:
    """Return the pairs of an action and a score that an argument holds."""
    pairs = listed(what, given, object)
    for index, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], Action):
            raise ToolkitError(f"{what}[{index}] is no pair of an Action and a score: {reprlib.repr(pair)}")
    return pairs


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
        return self.service.get_toolkit()

    @property
    def service(self) -> ToolkitService:
        """The service that adds to the graph and recommends from it."""
        return self._service

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools of the graph that run in this process, for a worker of the module that holds the wrapper."""
        return self.service.__toolbus_tools__()

    def chain(self, *items: Link) -> Self:
        """Add a chain, see ``add_chain``; return ``self``, so that another call can follow."""
        add_chain(self.service, *items)
        return self


def add_chain(service: ToolkitService, *items: Link) -> None:
    """Add a sequence of actions, each with the tools and groups listed after it, with scores of 1.0.

    In ``action, tool, action, (tool, group), action``, each action follows the one before it, and calls the tool, group or tuple
    of them that stands after it. A tuple that starts with an action is part of the chain. After a tool, a group or a tuple of
    them only an action may follow. Existing edges keep their scores.

    Raises:
        ToolkitError: the items are no valid chain (it is a ValueError), or an id belongs to something of another kind; nothing was
            changed.
    """
    expect("service", service, ToolkitService)
    toolkit = service.get_toolkit()
    steps = _steps(_flat(items))
    service._check_ids(chain.from_iterable((action, *called) for action, called in steps))
    before: Action | None = None
    for action, called in steps:
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


def tool_of_bus(tool: BusTool) -> Tool:
    """Return a toolkit tool for a tool of the bus; its id and name are the bus tool's name."""
    return Tool(tool.name, tool.name, tool.description, tool.parameters)


def group_of_service(tools: ToolView, service: str) -> ToolGroup:
    """Return a group of every tool of a service of the bus, sorted by name; its id is ``service:`` and the service's id.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"service:{service}", service, [tool for tool in tools.values() if tool.service == service], f"the service {service!r}")


def group_of_registry(tools: ToolView, group: str) -> ToolGroup:
    """Return a group of every tool of the bus in a registry group, sorted by name; its id is ``group:`` and the group's name.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"group:{group}", group, tools.filter(groups=[group]).values(), f"the group {group!r}")


def group_of_worker(target: ModuleType | ToolService | type[ToolService]) -> ToolGroup:
    """Return a group of every tool that a worker of this module or service serves, as tools of the bus, sorted by name.

    The group's id is ``worker:`` and the module's name or the service's id.

    Raises:
        ConfigurationError: it has no tools, or one of them is invalid.
    """
    served = collect(target, Settings())
    name = target.__name__ if isinstance(target, ModuleType) else served[0].id
    tools = {tool.name: Tool(tool.name, tool.name, tool.description, tool.schema) for each in served for tool in each.publication.tools}
    return _group(f"worker:{name}", name, served[0].publication.service.description, tools.values(), f"the worker {name!r}")


def group_of_module(module: ModuleType) -> ToolGroup:
    """Return a group of every public function of a module as a tool that runs in this process, sorted by name.

    Public functions are those in ``__all__``, else those that the module defines. Tool ids are qualified names, since functions
    of several modules may share a name. The group's id is ``module:`` and the module's name.

    Raises:
        ToolkitError: the module has none.
    """
    exported = getattr(module, "__all__", None)
    names = [name for name in vars(module) if not name.startswith("_")] if exported is None else exported
    found = [each for each in (getattr(module, name, None) for name in names) if inspect.isfunction(each)]
    own = [each for each in found if exported is not None or each.__module__ == module.__name__]
    tools = (Tool.from_function(each, id=f"{each.__module__}.{each.__qualname__}") for each in own)
    about = inspect.cleandoc(module.__doc__ or "").partition("\n")[0]
    return _group(f"module:{module.__name__}", module.__name__, about, tools, f"the module {module.__name__!r}")


def group_of_definitions(id: str, definitions: Iterable[object], *, name: str = "", description: str = "") -> ToolGroup:
    """Return a group of tools of the bus made from definitions, sorted by name; tool ids are the group's id, a slash, and the name.

    A definition is a mapping or an object with ``name``, ``description``, and ``inputSchema`` or ``input_schema`` (as MCP
    clients list a server's tools) or ``parameters``.

    Raises:
        ToolkitError: there is no definition, one has no name, two have the same name, or an argument is of another kind.
    """
    tools: dict[str, Tool] = {}
    for index, definition in enumerate(listed("definitions", definitions, object)):
        tool = _defined(id, index, definition)
        if tool.name in tools:
            raise ToolkitError(f"the group {id!r} has two definitions of the tool {tool.name!r}")
        tools[tool.name] = tool
    return _group(id, name or id, description, tools.values(), f"the group {id!r}")


def _of_bus(id: str, name: str, tools: Iterable[BusTool], what: str) -> ToolGroup:
    found = list(tools)
    service = found[0].service_descriptor if found and id.startswith("service:") else None
    return _group(id, name, "" if service is None else service.description, map(tool_of_bus, found), what)


def _group(id: str, name: str, description: str, tools: Iterable[Tool], what: str) -> ToolGroup:
    found = sorted(tools, key=lambda tool: tool.name)
    if not found:
        raise ToolkitError(f"{what} has no tools")
    return ToolGroup(id, name, description, found)


def _defined(group: str, index: int, definition: object) -> Tool:
    about: Callable[[str], Any] = definition.get if isinstance(definition, Mapping) else lambda name: getattr(definition, name, None)
    name = about("name")
    if not isinstance(name, str) or not name:
        raise ToolkitError(f"definition {index} of the group {group!r} has no name")
    schema = about("inputSchema") or about("input_schema") or about("parameters") or {"type": "object"}
    if not isinstance(schema, Mapping):
        raise ToolkitError(f"the schema of the tool {name!r} in the group {group!r} is a {type_name(schema)}, not an object")
    return Tool(f"{group}/{name}", name, about("description") or "", dict(schema), bus_name=name)
