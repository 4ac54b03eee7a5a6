"""Items at the vertices of a toolkit graph: actions, tools, and groups of tools."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from toolbus.results import DescriptorError
from toolbus.safe_text import type_name
from toolbus.schema import Derived, derive
from toolbus.schema.signature import read_signature
from toolbus.worker.definition.objects import ToolObject


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
        """The JSON Schema of the arguments.

        Raises:
            DescriptorError: the function can't be called with named arguments.
        """
        if self._parameters is not None:
            return dict(self._parameters)
        return {"type": "object"} if self._function is None else self.derived.parameters

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
        """The schema and binder of the function, derived on first use.

        Raises:
            DescriptorError: there is no function, or it can't be called with named arguments.
        """
        if self._derived is None:
            self._derived = derive(self._function, parameters=self._parameters)  # type: ignore[arg-type] # derive refuses None by itself
        return self._derived

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
    """

    def __init__(
        self,
        id: str,
        name: str,
        description: str = "",
        next_action_ids: Iterable[str] | None = None,
        tools: Iterable[Tool] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.description = description
        self.next_action_ids = list(next_action_ids or ())
        self.tools = list(tools or ())

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
        name, description: for people and models.
        tools: all of them.
    """

    def __init__(self, id: str, name: str, description: str = "", tools: Iterable[Tool] = ()) -> None:
        self._id = id
        self._name = name
        self._description = description
        self._tools = list(tools)

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


Item = Action | Tool | ToolGroup
"""The item of a vertex."""


def kind_of(item: object) -> str:
    """Return ``action``, ``tool`` or ``group``; empty for anything else."""
    if isinstance(item, Action):
        return "action"
    if isinstance(item, Tool):
        return "tool"
    return "group" if isinstance(item, ToolGroup) else ""


def a(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "action" else f"a {kind}"
