"""One tool as an agent sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from toolbus import schema
from toolbus.descriptors import ServiceDescriptor, ToolDescriptor
from toolbus.display import harmless
from toolbus.results import DescriptorError, ToolError

if TYPE_CHECKING:
    from toolbus.schema.validate import Preparer

ChangeKind = Literal["added", "updated", "removed"]


class Resolution(msgspec.Struct, frozen=True):
    """The target of a call as the catalogue knows it.

    Attributes:
        queue_limit: most requests in the queue, or 0 for the setting's.
        usual: the tool's own timeout (seconds), or 0 for the setting's.
        sticky: calls of one session go to the worker that has its state.
        ordered: they run in the order in which they were published.
    """

    service: str
    queue: str
    queue_limit: int
    config: Mapping[str, Any]
    effect: str = ""
    usual: float = 0.0
    digest: str = ""
    sticky: bool = False
    ordered: bool = False


class Tool:
    """One tool as an agent sees it; immutable. ``descriptor`` has everything its publisher said.

    Attributes:
        available: whether a live worker serves it, or its service starts one on demand.
        owner: who published it; ``operator`` for static descriptors.
        digest: of the publication it came with.
    """

    __slots__ = ("_preparer", "_resolution", "available", "descriptor", "digest", "owner", "service_descriptor")

    descriptor: ToolDescriptor
    service_descriptor: ServiceDescriptor | None
    available: bool
    owner: str
    digest: str
    _preparer: Preparer | None
    _resolution: Resolution | None

    def __init__(self, descriptor: ToolDescriptor, service: ServiceDescriptor | None, *, available: bool, owner: str, digest: str) -> None:
        write = object.__setattr__
        write(self, "descriptor", descriptor)
        write(self, "service_descriptor", service)
        write(self, "available", available)
        write(self, "owner", owner)
        write(self, "digest", digest)
        write(self, "_preparer", None)
        write(self, "_resolution", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tool is immutable; {name!r} can't be set")

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.descriptor.name

    @property
    def description(self) -> str:
        """The description for the model, with what would be invisible to a person written out."""
        return harmless(self.descriptor.description)

    @property
    def service(self) -> str:
        """Id of the service that runs it."""
        return self.descriptor.service

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments for models."""
        return self.descriptor.schema or {"type": "object"}

    @property
    def is_sticky(self) -> bool:
        """True if all calls of a session go to one worker, in the order in which they were published."""
        return self.service_descriptor is not None and self.service_descriptor.sticky_sessions

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups it belongs to."""
        return self.descriptor.groups

    @property
    def category(self) -> str:
        """Its category."""
        return self.descriptor.category

    def is_for(self, user: str) -> bool:
        """Return whether a user may see and call it."""
        tenants = self.descriptor.tenants
        return not tenants or user in tenants

    def definition(self) -> dict[str, Any]:
        """Return the bare function definition: ``{name, description, parameters}``."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def prepare(self, arguments: Mapping[str, Any], changes: list[str] | None = None) -> dict[str, Any]:
        """Return arguments that the tool takes, cast where its schema leaves no doubt; the ones given when they fit.

        Args:
            arguments: left as they are.
            changes: what was cast is added, also when the arguments are refused all the same.

        Raises:
            ToolError: ``invalid_arguments``, naming the place; ``tool_error`` (``bad_schema``) when the tool's own schema is impossible.
        """
        preparer = self._preparer
        if preparer is None:
            try:
                preparer = schema.preparer_for(self.descriptor)
            except DescriptorError as error:
                # Publications come from workers of every kind, and reading them compiles no schema.
                raise ToolError(f"the schema of the tool {self.name!r} is wrong: {error}", code="bad_schema") from None
            object.__setattr__(self, "_preparer", preparer)
        return preparer.prepare(arguments, changes)

    @property
    def resolution(self) -> Resolution:
        """The target of its calls, made at the first one."""
        found = self._resolution
        if found is None:
            about = self.descriptor
            # An operator's descriptor may stand for another service, which takes from the queue that it names.
            served = self.service_descriptor or ServiceDescriptor(about.service)
            sticky = served.sticky_sessions
            ordered = sticky and about.sequential is not False
            place = (served.id, served.queue, served.queue_limit)
            found = Resolution(*place, about.config, about.effect, about.timeout, self.digest, sticky, ordered)
            object.__setattr__(self, "_resolution", found)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tool) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.name, self.service, self.digest))

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, service={self.service!r}, available={self.available})"

    def _identity(self) -> tuple[object, ...]:
        return (self.descriptor, self.service_descriptor, self.available, self.owner)


class ToolChange(msgspec.Struct, frozen=True):
    """One change of the catalogue; ``tool`` is what it is now, or was when removed."""

    kind: ChangeKind
    name: str
    tool: Tool
