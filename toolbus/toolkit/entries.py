"""Entries of a preset: the types of its tools, groups, actions and operators as they are written in YAML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus.naming import SERVICE_ID
from toolbus.results import ToolkitError

_Id = Annotated[str, Meta(min_length=1, max_length=256)]
_Score = Annotated[float, Meta(ge=0, le=1)]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An edge to another entry; a bare id is short for a link with the score 1.0."""

    to: _Id
    score: _Score = 1.0


class ToolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool of the bus, or a function of this process.

    Attributes:
        id: id of its vertex.
        name: the name for the model; the id when left out.
        description: text for people where the tool is not available; the tool's own when left out.
        parameters: JSON Schema, also for people.
        bus: the bus tool's name; ``name`` when left out.
        function: ``module:function`` instead of a tool of the bus.
    """

    id: _Id
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    bus: str = ""
    function: str = ""


class GroupEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tools that come and go together: those of a service, of a registry group, or the listed ones.

    Attributes:
        id: id of its vertex.
        name, description: for people and models.
        service: id of a service; the group holds the tools that it has at the moment.
        group: name of a registry group; the group holds the tools that it has at the moment.
        tools: ids of further tool entries.
    """

    id: _Id
    name: str = ""
    description: str = ""
    service: str = ""
    group: str = ""
    tools: tuple[_Id, ...] = ()


class ActionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a task.

    Attributes:
        id: id of its vertex.
        name: the id when left out.
        description: text for the model.
        next: the actions that may follow.
        call: the tools and groups that it may call.
    """

    id: _Id
    name: str = ""
    description: str = ""
    next: tuple[str | Link, ...] = ()
    call: tuple[str | Link, ...] = ()


class OperatorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An agent that works with the graph: where it starts and how much of the graph it sees.

    Attributes:
        id: its name.
        instruction: the agent's instruction.
        actions: ids of the actions where it starts.
        threshold: lowest score of an edge that is followed.
        hops: how many Next edges are followed.
    """

    id: _Id
    instruction: str = ""
    actions: tuple[_Id, ...] = ()
    threshold: _Score = 0.5
    hops: Annotated[int, Meta(ge=0, le=100)] = 0


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph, and the operators that use it.

    Attributes:
        version: version of this format.
        name: name under which it is published; letters, digits, ``_``, ``.`` and ``-``.
        description: text for people.
        chains: sequences of ids: an action, what it calls, the next action; ids in a list are called together.
        revision: revision of the learned scores; empty when none were learned.
    """

    name: Annotated[str, Meta(pattern=f"^{SERVICE_ID.pattern}")]
    version: Literal[1] = 1
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    actions: tuple[ActionEntry, ...] = ()
    chains: tuple[tuple[Any, ...], ...] = ()
    operators: tuple[OperatorEntry, ...] = ()
    revision: str = ""

    def operator(self, id: str) -> OperatorEntry:
        """Return an operator.

        Raises:
            ToolkitError: there is none with that id.
        """
        for each in self.operators:
            if each.id == id:
                return each
        known = ", ".join(each.id for each in self.operators) or "none"
        raise ToolkitError(f"the preset {self.name!r} has no operator {id!r} (it has: {known})")
