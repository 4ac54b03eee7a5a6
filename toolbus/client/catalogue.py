"""An agent's live view of the registry: which tools there are, and what is needed to call them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from typing import Any, Literal, Self

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import ServiceRecord
from toolbus.client.call import Resolution
from toolbus.client.queues import Queues
from toolbus.descriptors import (
    ServiceDescriptor,
    ToolDescriptor,
    check_config,
    is_tool_document,
    parse_service,
    parse_tool,
)
from toolbus.results import DescriptorError
from toolbus.schema import Checker, check_for

ChangeKind = Literal["added", "updated", "removed"]


class Tool:
    """One tool as an agent sees it; immutable. ``descriptor`` has everything its publisher said.

    Attributes:
        available: whether a live worker serves it, or its service starts one on demand.
        owner: who published it; ``operator`` for static descriptors.
        digest: of the publication it came with.
    """

    __slots__ = ("_checker", "_resolution", "available", "descriptor", "digest", "owner", "service_descriptor")

    descriptor: ToolDescriptor
    service_descriptor: ServiceDescriptor | None
    available: bool
    owner: str
    digest: str
    _checker: Checker | None
    _resolution: Resolution | None

    def __init__(self, descriptor: ToolDescriptor, service: ServiceDescriptor | None, *, available: bool, owner: str, digest: str) -> None:
        write = object.__setattr__
        write(self, "descriptor", descriptor)
        write(self, "service_descriptor", service)
        write(self, "available", available)
        write(self, "owner", owner)
        write(self, "digest", digest)
        write(self, "_checker", None)
        write(self, "_resolution", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tool is immutable; {name!r} can't be set")

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.descriptor.name

    @property
    def description(self) -> str:
        """What the model reads."""
        return self.descriptor.description

    @property
    def service(self) -> str:
        """Id of the service that runs it."""
        return self.descriptor.service

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments for models."""
        return self.descriptor.schema or {"type": "object"}

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups it belongs to."""
        return self.descriptor.groups

    @property
    def category(self) -> str:
        """Its category."""
        return self.descriptor.category

    def definition(self) -> dict[str, Any]:
        """The bare function definition: ``{name, description, parameters}``."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check arguments.

        :raises ToolError: with type ``invalid_arguments``, naming the place.
        """
        checker = self._checker
        if checker is None:
            checker = check_for(self.descriptor)
            object.__setattr__(self, "_checker", checker)
        checker.check(arguments)

    @property
    def resolution(self) -> Resolution:
        """Where calls of it go; worked out at the first one."""
        found = self._resolution
        if found is None:
            about = self.descriptor
            # An operator's descriptor may stand for another service, which takes from the queue that it names.
            service = about.service if self.service_descriptor is None else self.service_descriptor.id
            found = Resolution(service, self.service_descriptor, about.config, about.effect, about.timeout, self.digest)
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


class ToolView(Mapping[str, Tool]):
    """A live mapping from name to tool, sorted by name; ``filter`` narrows it and stays live."""

    def __init__(self, catalogue: Catalogue, accepts: Callable[[Tool], bool] | None = None) -> None:
        self._catalogue = catalogue
        self._accepts = accepts

    def __getitem__(self, name: str) -> Tool:
        tool = self._catalogue.tools[name]
        if self._accepts is not None and not self._accepts(tool):
            raise KeyError(name)
        return tool

    def __iter__(self) -> Iterator[str]:
        accepts = self._accepts
        for name in self._catalogue.names():
            if accepts is None or accepts(self._catalogue.tools[name]):
                yield name

    def __len__(self) -> int:
        return len(self._catalogue.tools) if self._accepts is None else sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<tools: {', '.join(self)}>"

    def filter(self, *, groups: Container[str] | None = None, categories: Container[str] | None = None) -> ToolView:
        """A live view of the tools in any of these groups and any of these categories."""
        before = self._accepts

        def accepts(tool: Tool) -> bool:
            return (
                (before is None or before(tool))
                and (groups is None or any(group in groups for group in tool.groups))
                and (categories is None or tool.category in categories)
            )

        return ToolView(self._catalogue, accepts)

    def definitions(self) -> list[dict[str, Any]]:
        """Bare function definitions of the available tools, sorted by name."""
        return [tool.definition() for tool in self.values() if tool.available]

    def subscribe(self) -> Subscription:
        """Changes of the whole catalogue from now on; ``changes`` is the usual way to read them."""
        return self._catalogue.subscription()

    async def changes(self) -> AsyncIterator[ToolChange]:
        """Changes from now on, until the bus closes. A slow reader gets each tool's latest change only."""
        with self.subscribe() as subscription:
            async for change in subscription:
                if self._accepts is None or self._accepts(change.tool):
                    yield change


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


class Catalogue:
    """Keeps the tools up to date from the registry's snapshot and changes."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.services: dict[str, ServiceRecord] = {}
        self.static_services: dict[str, ServiceDescriptor] = {}
        self._static_tools: dict[str, Any] = {}
        self._tools_of: dict[str, dict[str, Tool]] = {}
        self._queues = Queues()
        self._names: list[str] | None = None
        self._subscriptions: list[Subscription] = []
        self._changed = asyncio.Event()

    # -- reading ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Every tool's name, sorted."""
        if self._names is None:
            self._names = sorted(self.tools)
        return self._names

    def near(self, name: str) -> list[str]:
        """Names that look like a wrong one."""
        return difflib.get_close_matches(name, self.names(), n=3, cutoff=0.5)

    def service(self, id: str) -> tuple[ServiceDescriptor | None, bool]:
        """The descriptor of a service, named by its id or its queue, if it is known, and whether it can be called now.

        A static descriptor is answered by the service that takes from the queue it names.
        """
        static = self.static_services.get(id)
        record = self.services.get(id) or self._queues.serving(id if static is None else static.queue)
        if record is None:
            return static, False
        service = record.publication.service
        return service, record.live or service.scale_to_zero

    def subscription(self) -> Subscription:
        """A new subscription to changes; leaving its context ends it."""
        subscription = Subscription(self._subscriptions.remove)
        self._subscriptions.append(subscription)
        return subscription

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` holds; it is asked again after each change."""
        while not ready():
            await self._changed.wait()

    def wake(self) -> None:
        """Make everybody who waits look again."""
        # Whoever waits now is woken; whoever comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End every subscription, and wake everybody who waits."""
        self.wake()
        for subscription in self._subscriptions:
            subscription.close()

    # -- changes, as an AgentListener -------------------------------------------------------------

    def on_registry(self, services: dict[str, ServiceRecord], items: dict[str, bytes]) -> None:
        """Replace everything known by a snapshot."""
        before = set(self.services) | set(self._tools_of)
        self.services = dict(services)
        self._queues = Queues(services)
        self.static_services = {}
        self._static_tools = {}
        for key, document in items.items():
            self._take_item(key, document)
        for service in before | set(services) | set(self.static_services) | self._services_of_items():
            self._settle(service)
        self.wake()

    def on_service(self, service: str, record: ServiceRecord | None) -> None:
        """Take in a service's change."""
        if record is None:
            self.services.pop(service, None)
        else:
            self.services[service] = record
        queues = self._queues.put(service, record)
        for each in {service, *(name for name, static in self.static_services.items() if static.queue in queues)}:
            self._settle(each)
        self.wake()

    def on_item(self, key: str, document: bytes | None) -> None:
        """Take in a static descriptor's change."""
        before = self._services_of_items()
        self._take_item(key, document)
        kind, _, name = key.partition("/")
        for service in before | self._services_of_items() | ({name} if kind == "tool-service" else set()):
            self._settle(service)
        self.wake()

    # -- inside -----------------------------------------------------------------------------------

    def _services_of_items(self) -> set[str]:
        return {document["service"] for document in self._static_tools.values()}

    def _take_item(self, key: str, document: bytes | None) -> None:
        kind, _, name = key.partition("/")
        if document is None:
            (self._static_tools if kind == "tool" else self.static_services).pop(name, None)
            return
        try:
            decoded = msgspec.json.decode(document)
            if kind == "tool-service":
                self.static_services[name] = parse_service({**decoded, "id": decoded.get("id", name)})
            elif kind == "tool" and is_tool_document(decoded):
                parse_tool(decoded, None)
                self._static_tools[name] = decoded
        except (DescriptorError, msgspec.DecodeError, RecursionError, UnicodeDecodeError, AttributeError, TypeError) as error:
            telemetry.log.warning("descriptor.invalid", key=key, error=str(error))

    def _settle(self, service: str) -> None:
        """Make one service's tools what the registry says now, and announce the differences."""
        after = self._current(service)
        before = self._tools_of.get(service, {})
        for name, tool in before.items():
            if name not in after and self.tools.get(name) is tool:
                del self.tools[name]
                self._names = None
                self._announce("removed", tool)
        kept: dict[str, Tool] = {}
        for name, tool in after.items():
            known = self.tools.get(name)
            if known is None:
                self._names = None
            elif known.service != service and known.available:
                # First wins: the registry settles it, and this view catches up with its next change.
                telemetry.log.warning("tool.name_taken", tool=name, service=service, holder=known.service)
                continue
            elif known == tool:
                kept[name] = known
                continue
            self.tools[name] = kept[name] = tool
            self._announce("added" if known is None else "updated", tool)
        if kept:
            self._tools_of[service] = kept
        else:
            self._tools_of.pop(service, None)

    def _current(self, service: str) -> dict[str, Tool]:
        record = self.services.get(service)
        # Tools are checked against what their own service declares, whoever serves its queue.
        declared = self.static_services.get(service) if record is None else record.publication.service
        descriptor, available = (None, False) if declared is None else self.service(service)
        tools: dict[str, Tool] = {}
        for name, document in self._static_tools.items():
            if document["service"] != service:
                continue
            try:
                tool = parse_tool(document, None)
                if declared is not None:
                    check_config(tool, declared)
            except DescriptorError as error:
                telemetry.log.warning("descriptor.invalid", key=f"tool/{name}", error=str(error))
                continue
            tools[name] = Tool(tool, descriptor, available=available, owner="operator", digest="")
        if record is not None:
            publication = record.publication
            for tool in publication.tools:
                tools[tool.name] = Tool(tool, publication.service, available=available, owner=publication.owner, digest=publication.digest)
        return tools

    def _announce(self, kind: ChangeKind, tool: Tool) -> None:
        change = ToolChange(kind, tool.name, tool)
        for subscription in self._subscriptions:
            subscription.put(change)
