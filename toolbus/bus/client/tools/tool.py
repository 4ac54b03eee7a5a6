"""One tool as an agent sees it, and groups of tools that are used together."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.support.display import harmless
from toolbus.bus.support.grouping import grouped
from toolbus.bus.values.descriptors import ServiceDescriptor, ToolDescriptor
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import DescriptorError, ToolError

if TYPE_CHECKING:
    from toolbus.bus.schema.arguments import Preparer


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
        name: the tool's name.
        available: whether a live worker serves it, or its service starts one on demand.
        owner: who published it; ``operator`` for static descriptors.
        digest: of the publication it came with.
        resolution: the target of its calls.
        preparer: checks and casts arguments; None before the first call, since compiling a schema takes its time.
    """

    __slots__ = ("available", "descriptor", "digest", "name", "owner", "preparer", "resolution", "service_descriptor")

    name: str
    descriptor: ToolDescriptor
    service_descriptor: ServiceDescriptor | None
    available: bool
    owner: str
    digest: str
    resolution: Resolution
    preparer: Preparer | None

    def __init__(self, descriptor: ToolDescriptor, service: ServiceDescriptor | None, *, available: bool, owner: str, digest: str) -> None:
        write = object.__setattr__
        write(self, "name", descriptor.name)
        write(self, "descriptor", descriptor)
        write(self, "service_descriptor", service)
        write(self, "available", available)
        write(self, "owner", owner)
        write(self, "digest", digest)
        write(self, "preparer", None)
        # An operator's descriptor may stand for another service, which takes from the queue that it names.
        served = service or ServiceDescriptor(descriptor.service)
        sticky = served.sticky_sessions
        ordered = sticky and descriptor.sequential is not False
        place = (served.id, served.queue, served.queue_limit)
        write(self, "resolution", Resolution(*place, descriptor.config, descriptor.effect, descriptor.timeout, digest, sticky, ordered))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tool is immutable; {name!r} can't be set")

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
        preparer = self.preparer
        if preparer is None:
            from toolbus.bus.schema.arguments import preparer_for  # noqa: PLC0415 - a program that only looks at tools checks no arguments

            try:
                preparer = preparer_for(self.descriptor)
            except DescriptorError as error:
                # Publications come from workers of every kind, and reading them compiles no schema.
                raise ToolError(f"the schema of the tool {self.name!r} is wrong: {error}", code="bad_schema") from None
            object.__setattr__(self, "preparer", preparer)
        return preparer.prepare(arguments, changes)

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


class Subscription:
    """Changes that wait for one reader, at most one per tool."""

    def __init__(self, leave: Callable[[Subscription], None]) -> None:
        self._leave = leave
        self._waiting: dict[str, ToolChange] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._leave(self)

    def put(self, change: ToolChange) -> None:
        """Add a change, in place of an unread one of the same tool."""
        self._waiting.pop(change.name, None)
        self._waiting[change.name] = change
        self._arrived.set()

    def close(self) -> None:
        """End the iteration once what waits has been read."""
        self._closed = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[ToolChange]:
        while True:
            await self._arrived.wait()
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._closed:
                return
            self._arrived.clear()


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_REPLACED = re.compile(r".*--[a-z2-7]{12}\Z", re.DOTALL)
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_READABLE = 50
_LONGEST = 64


def is_replaced(name: str) -> bool:
    """Return whether a name is, or looks like, what ``wire_name`` makes of a name that does not fit."""
    return "--" in name and _REPLACED.match(name) is not None


def wire_name(name: str) -> str:
    """Return the name under which a model calls a tool."""
    # The first is the quick answer for most names.
    if name.isidentifier() and name.isascii() and len(name) <= _LONGEST:
        return name
    if _PLAIN.match(name) and not is_replaced(name):
        return name
    hashed = base64.b32encode(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=10).digest()).decode().lower()
    readable = _OTHERS.sub("_", name)[:_READABLE]
    return f"{readable}--{hashed[:12]}"


def replaced_names(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the wire names that differ, with their names, and the refused names, with those that have their wire name.

    Two names share a wire name only if an attacker makes them so; the first in order keeps it.
    """
    taken: dict[str, str] = {}
    refused: dict[str, str] = {}
    # Those that stand for themselves need no order; most do.
    for name in sorted(name for name in names if not (name.isidentifier() and name.isascii() and len(name) <= _LONGEST)):
        wire = wire_name(name)
        if wire == name:
            continue
        if wire in taken:
            refused[name] = taken[wire]
        else:
            taken[wire] = name
    return taken, refused


_NONE: Mapping[str, ServiceRecord] = {}


class Queues:
    """The registered services by the queue they take from."""

    def __init__(self, services: Mapping[str, ServiceRecord] = _NONE) -> None:
        self._records: dict[str, dict[str, ServiceRecord]] = {}
        self._queue_of: dict[str, str] = {}
        for service, record in services.items():
            self.put(service, record)

    def put(self, service: str, record: ServiceRecord | None) -> set[str]:
        """Take in a service's change; returns the queues it concerns."""
        changed: set[str] = set()
        before = self._queue_of.pop(service, None)
        if before is not None:
            changed.add(before)
            records = self._records[before]
            del records[service]
            if not records:
                del self._records[before]
        if record is not None:
            queue = self._queue_of[service] = record.publication.service.queue
            self._records.setdefault(queue, {})[service] = record
            changed.add(queue)
        return changed

    def serving(self, queue: str) -> ServiceRecord | None:
        """Return the service that takes from a queue; of several a live one, the first by name."""
        records = self._records.get(queue, _NONE)
        return min(records.values(), key=lambda record: (not record.live, record.publication.service.id), default=None)


class ToolGroup(msgspec.Struct, frozen=True):
    """Tools that are used together.

    Attributes:
        group_id: its id.
        name: for people.
        description: its purpose.
        category: a label.
        tool_ids: its tools.
        usage_order: the tools in the order in which they are used.
        usage_example: for models.
    """

    group_id: str = ""
    name: str = ""
    description: str = ""
    category: str = ""
    tool_ids: tuple[str, ...] = ()
    usage_order: tuple[str, ...] = ()
    usage_example: str = ""


def read_group(id: str, document: bytes) -> ToolGroup:
    """Return the group that a stored document is.

    Raises:
        DescriptorError: it is none.
    """
    try:
        return msgspec.structs.replace(msgspec.json.decode(document, type=ToolGroup), group_id=id)
    except DECODE_ERRORS as error:
        raise DescriptorError(f"it is no group of tools: {error}") from None


RUNTIME = "worker"
"""The runtime of tools that say nothing of theirs."""


def runtime_of(tool: Tool) -> str:
    """Return what runs a tool: ``runtime`` in its ``x-toolbus``, or ``worker``."""
    declared = tool.descriptor.extensions.get("runtime")
    return declared if isinstance(declared, str) and declared else RUNTIME


def groups_of(stored: Mapping[str, ToolGroup], tools: Mapping[str, Tool]) -> dict[str, ToolGroup]:
    """Return the groups by id, sorted: those that are stored, and those that tools name; of their tools only these."""
    found = dict(stored)
    named = grouped((group, tool.name) for tool in tools.values() for group in tool.groups)
    for label in named.keys() - found.keys():
        found[label] = ToolGroup(label, label)
    return {each: _narrowed(found[each], named.get(each, ()), tools) for each in sorted(found)}


def memberships(groups: Mapping[str, ToolGroup]) -> dict[str, list[str]]:
    """Return the ids of the groups that each tool is in, sorted."""
    return grouped((name, group_id) for group_id, group in groups.items() for name in group.tool_ids)


def _narrowed(group: ToolGroup, named: Iterable[str], tools: Mapping[str, Tool]) -> ToolGroup:
    # Those that are stored keep their order.
    of = dict.fromkeys([*(name for name in group.tool_ids if name in tools), *sorted(named)])
    order = tuple(name for name in group.usage_order if name in of)
    return msgspec.structs.replace(group, name=group.name or group.group_id, tool_ids=tuple(of), usage_order=order)
