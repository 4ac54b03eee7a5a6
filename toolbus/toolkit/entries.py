"""What a preset says: entries, as they are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus.results import ToolkitError

_Id = Annotated[str, Meta(min_length=1, max_length=256)]
_Score = Annotated[float, Meta(ge=0, le=1)]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An edge to another entry; its bare id means the score 1.0."""

    to: _Id
    score: _Score = 1.0


class ToolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool of the bus, or a function of this process.

    Attributes:
        id: of its vertex.
        name: what the model calls it; the id when left out.
        description: for people, where the tool itself is not there; the tool's own when left out.
        parameters: JSON Schema, for people, too.
        bus: the bus tool's name; ``name`` when left out.
        function: ``module:function`` in place of a tool of the bus.
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
        id: of its vertex.
        name, description: for people and models.
        service: id of the service whose tools they are, as they are at the moment.
        group: the registry group whose tools they are, as they are at the moment.
        tools: ids of entries, beside those.
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
        id: of its vertex.
        name: the id when left out.
        description: what the model reads.
        next: the actions that may follow.
        call: the tools and groups that it may call.
    """

    id: _Id
    name: str = ""
    description: str = ""
    next: tuple[str | Link, ...] = ()
    call: tuple[str | Link, ...] = ()


class OperatorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who works with the graph: where it starts, and how much of it is shown.

    Attributes:
        id: its name.
        instruction: what it is told.
        actions: where it starts.
        threshold: the lowest score of an edge that is followed.
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
        version: of this format.
        name: under which it is published; letters, digits, ``_``, ``.`` and ``-``.
        description: for people.
        chains: sequences of ids: an action, what it calls, the next action; a list in it is called together.
        revision: of the scores, where they were learned.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    version: Literal[1] = 1
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    actions: tuple[ActionEntry, ...] = ()
    chains: tuple[tuple[Any, ...], ...] = ()
    operators: tuple[OperatorEntry, ...] = ()
    revision: str = ""

    def operator(self, id: str) -> OperatorEntry:
        """An operator.

        Raises:
            ToolkitError: there is none of that id.
        """
        for each in self.operators:
            if each.id == id:
                return each
        known = ", ".join(each.id for each in self.operators) or "none"
        raise ToolkitError(f"the preset {self.name!r} has no operator {id!r} (it has: {known})")
