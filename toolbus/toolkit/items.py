"""Items at the vertices of a toolkit graph: actions, tools, and groups of tools."""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Self, TypeVar

from toolbus.bus.schema import Derived, derive
from toolbus.bus.schema.derivation import read_signature
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import DescriptorError, ToolkitError
from toolbus.bus.worker.function import ToolObject
from toolbus.bus.worker.provide import Services, injected

T = TypeVar("T")


class Tool:
    """Something that an action can call: a function of this process, or a tool of the bus.

    Two tools are equal when they are the same object, or share class, id, name, description, parameters and target.

    Args:
        id: id of its vertex; unique in a graph.
        name: the name for the model; need not be unique.
        description: the text for the model; the function's docstring when left out.
        parameters: JSON Schema of the arguments; when left out, derived from the function, or any object.
        function: a coroutine function or a plain one; None for a tool of the bus.
        bus_name: the bus tool's name; ``name`` when left out, and empty when there is a function.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(
        self,
        id: str,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        function: Callable[..., Any] | None = None,
        bus_name: str = "",
    ) -> None:
        self._id = id
        self._name = name
        self._description = description
        self._parameters = parameters
        self._function = function
        self._bus_name = bus_name or ("" if function is not None else name)
        self._derived: Derived | None = None
        self._services: list[type] = []
        _check(self, _TOOL, id=(id, str), name=(name, str), description=(description or "", str), bus_name=(bus_name, str))
        _check(self, _TOOL, parameters=({} if parameters is None else parameters, Mapping), function=(function or _check, Callable))

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, id: str | None = None, name: str | None = None) -> Self:
        """Make a tool of a function; by default its name is the function's, and its id is its name."""
        named = name or getattr(function, "__name__", None) or type_name(function)
        return cls(id or named, named, function=function)

    @property
    def id(self) -> str:
        """The id of its vertex."""
        return self._id

    @property
    def name(self) -> str:
        """The name for the model."""
        return self._name

    @property
    def description(self) -> str:
        """The text for the model."""
        if self._description or self._function is None:
            return self._description
        try:
            return read_signature(self._function, injected=(), skip_self=False).description
        except DescriptorError:
            return ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments; parameters that services fill in are no part of it (``toolbus.provide``).

        Raises:
            DescriptorError: the function can't be called with named arguments.
        """
        if self._parameters is None:
            return {"type": "object"} if self._function is None else self.derived.parameters
        return self._schema(self._parameters, Services())

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function that runs in this process; None for a tool of the bus."""
        return self._function

    @property
    def bus_name(self) -> str:
        """The bus tool's name; empty when a function of this process runs."""
        return self._bus_name

    @property
    def derived(self) -> Derived:
        """The schema and binder of the function, derived on first use, and again when other services are provided.

        Raises:
            DescriptorError: there is no function, or it can't be called with named arguments.
        """
        services = Services()
        known = [*services]
        if self._derived is None or known != self._services:
            function: Any = self._function
            schema = None if self._parameters is None else self._schema(self._parameters, services)
            self._derived = derive(function, parameters=schema, injected=injected(schema, function, services))
            self._services = known
        return self._derived

    def _schema(self, given: Mapping[str, Any], services: Services) -> dict[str, Any]:
        """Return the given schema without the parameters that services fill in."""
        try:
            found = {} if self._function is None else read_signature(self._function, injected=services, skip_self=False).injected
        except DescriptorError:  # told when the function is derived
            found = {}
        return _without(given, [name for name, type_ in found.items() if services.provides(type_)])

    def definition(self) -> dict[str, Any]:
        """Return the bare function definition: ``{name, description, parameters}``."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def copy(self) -> Self:
        """Return a copy for callers of a graph; subclasses may override how it is made."""
        return copy.copy(self)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tool for a worker of its module; none when it is a tool of the bus."""
        return [] if self._function is None else [ToolObject(self.name, self._description, self._parameters, self._function, self)]

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and isinstance(other, Tool) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"{type_name(self)}({self._id!r}, {self._name!r})"

    def _identity(self) -> tuple[object, ...]:
        return (self._id, self._name, self._description, self._parameters, self._function, self._bus_name)


class Action:
    """A step of a task: what an agent may be doing, what it may do next, and what it may call.

    Attributes:
        id: id of its vertex; unique in a graph.
        name: name for people; need not be unique.
        description: text for the model.
        next_action_ids: ids of actions that may follow; ``ToolkitService.add_action`` turns them into edges.
        tools: tools that the action may call; ``ToolkitService.add_action`` turns them into edges, too.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(
        self,
        id: str,
        name: str,
        description: str = "",
        next_action_ids: Iterable[str] | None = None,
        tools: Iterable[Tool] | None = None,
    ) -> None:
        _check(self, _ACTION, id=(id, str), name=(name, str), description=(description or "", str))
        self.id = id
        self.name = name
        self.description = description
        self.next_action_ids = _members(self, _ACTION, "next_action_ids", next_action_ids, str)
        self.tools = _members(self, _ACTION, "tools", tools, Tool)

    def copy(self) -> Self:
        """Return a copy for callers of a graph, with its own lists; subclasses may override how it is made."""
        made = copy.copy(self)
        made.next_action_ids = list(self.next_action_ids)
        made.tools = list(self.tools)
        return made

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type_name(self)}({self.id!r}, {self.name!r})"


class ToolGroup:
    """Tools that come and go together: all tools of one service, registry group, module or MCP server.

    Args:
        id: id of its vertex; unique in a graph.
        name: for people and models.
        description: for people and models.
        tools: all of them.

    Raises:
        ToolkitError: an argument is of another kind, as when two were given in each other's place.
    """

    def __init__(self, id: str, name: str, description: str = "", tools: Iterable[Tool] = ()) -> None:
        _check(self, _GROUP, id=(id, str), name=(name, str), description=(description or "", str))
        self._id = id
        self._name = name
        self._description = description
        self._tools = _members(self, _GROUP, "tools", tools, Tool)

    @property
    def id(self) -> str:
        """The id of its vertex."""
        return self._id

    @property
    def name(self) -> str:
        """The name for people and models."""
        return self._name

    @property
    def description(self) -> str:
        """The description for people and models."""
        return self._description

    @property
    def tools(self) -> list[Tool]:
        """All tools of the group, in a new list."""
        return list(self._tools)

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return its tools for a worker of its module, without those of the bus."""
        return [found for tool in self._tools for found in tool.__toolbus_tools__()]

    def __repr__(self) -> str:
        return f"{type_name(self)}({self._id!r}, {self._name!r}, {len(self._tools)} tools)"


def _without(schema: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a schema without some of its properties."""
    made, properties = dict(schema), schema.get("properties", {})
    if not any(name in properties for name in names):
        return made
    made["properties"] = {name: each for name, each in properties.items() if name not in names}
    if "required" in made:
        made["required"] = [name for name in made["required"] if name not in names]
    return made


Item = Action | Tool | ToolGroup
"""The item of a vertex."""


_TOOL = "Tool(id, name, description, parameters, function, bus_name)"
_ACTION = "Action(id, name, description, next_action_ids, tools)"
_GROUP = "ToolGroup(id, name, description, tools)"


def _check(item: object, form: str, **given: tuple[object, Any]) -> None:
    """Refuse arguments that are not of their kinds.

    Raises:
        ToolkitError: the message names the argument, and the order of all of them.
    """
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            whose = "an Action" if isinstance(item, Action) else f"a {type_name(item)}"
            raise ToolkitError(f"{name}={reprlib.repr(value)} of {whose} has the type {type_name(value)}: the order is {form}")


def _members(item: object, form: str, name: str, given: Iterable[T] | None, kind: type[T]) -> list[T]:
    """Return what a list argument holds.

    Raises:
        ToolkitError: it is no list, or it holds something of another kind.
    """
    if isinstance(given, str):
        _check(item, form, **{name: (given, list)})
    _check(item, form, **{name: (given or (), Iterable)})
    found = list(given or ())
    for index, each in enumerate(found):
        _check(item, form, **{f"{name}[{index}]": (each, kind)})
    return found


def kind_of(item: object) -> str:
    """Return ``action``, ``tool`` or ``group``; empty for anything else."""
    if isinstance(item, Action):
        return "action"
    if isinstance(item, Tool):
        return "tool"
    return "group" if isinstance(item, ToolGroup) else ""


def edge_kind(source: object, target: object) -> Literal["next", "call", "holds"]:
    """Return the kind of the edge between two items: a group holds its tools, and an action is followed by actions and calls the rest."""
    if isinstance(source, ToolGroup):
        return "holds"
    return "next" if isinstance(target, Action) else "call"


def a(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "action" else f"a {kind}"
