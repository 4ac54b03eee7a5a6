"""An agent's live view of the registry: which tools there are, which of them are withheld, and what is needed to call them."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import ALL_TOOLS, RefusedTool, ServiceRecord
from toolbus.bus.client.tools.tool import ChangeKind, Queues, Subscription, Tool, ToolChange, ToolGroup, read_group
from toolbus.bus.schema.casting import summary
from toolbus.bus.schema.dialects import check_possible
from toolbus.bus.schema.mend import mended_document
from toolbus.bus.support.display import shortened
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.descriptors import ServiceDescriptor, is_tool_document, parse_service, parse_tool
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.naming import DOCUMENT_KINDS, key_flaw
from toolbus.bus.values.pins import Pin, approves, changes, read
from toolbus.bus.values.results import DescriptorError

T = TypeVar("T")

_MOST_REASON = 200


class Withholding(msgspec.Struct, eq=False):
    """The pins of a namespace, and the tools that are withheld because of them.

    Attributes:
        required: withhold tools without a pin, too.
        tools: those that are withheld, each with the reason.
        pins: by tool; None for one that can't be read, and approves nothing.
    """

    required: bool = False
    tools: dict[str, tuple[Tool, str]] = {}
    pins: dict[str, Pin | None] = {}

    def take(self, name: str, document: bytes | None) -> None:
        """Take in a tool's pin, or that it is gone (None)."""
        if document is None:
            self.pins.pop(name, None)
            return
        try:
            self.pins[name] = read(document)
        except DescriptorError as error:
            self.pins[name] = None
            telemetry.log.warning("pin.unreadable", tool=name, error=str(error))

    def admitted(self, service: str, tools: dict[str, Tool]) -> dict[str, Tool]:
        """Return the tools of a service that are not withheld, and keep the others."""
        for name in [name for name, (tool, _) in self.tools.items() if tool.service == service and name not in tools]:
            del self.tools[name]
        if not self.pins and not self.required:
            for name in tools:
                self.tools.pop(name, None)
            return tools
        found: dict[str, Tool] = {}
        for name, tool in tools.items():
            before, reason = self.reason(name), self._reason(tool)
            if not reason:
                self.tools.pop(name, None)
                found[name] = tool
                continue
            if before != reason:
                telemetry.log.warning("tool.withheld", tool=name, service=service, reason=reason)
            self.tools[name] = tool, reason
        return found

    def reason(self, name: str) -> str:
        """Return why a tool is withheld; empty when it is not."""
        return self.tools[name][1] if name in self.tools else ""

    def refuses(self, name: str) -> bool:
        """Return whether a tool of this name would be withheld in every form that nobody offers now."""
        if name not in self.pins:
            return self.required
        pin = self.pins[name]
        return pin is None or pin.state == "rejected"

    def _reason(self, tool: Tool) -> str:
        name = tool.name
        if name not in self.pins:
            waits = f"it waits for approval: look at `toolbus see describe {name}`, then `toolbus secure approve {name}`"
            return waits if self.required else ""
        pin = self.pins[name]
        if pin is None:
            return f"its approval can't be read; `toolbus secure approve {name}` makes another"
        if pin.state == "rejected":
            why = f" ({shortened(pin.reason, _MOST_REASON)})" if pin.reason else ""
            return f"an operator rejected it{why}; `toolbus secure approve {name}` lets it be used"
        if approves(pin, tool.descriptor):
            return ""
        what = ", ".join(changes(pin, tool.descriptor)) or "something"
        told = f"it has changed since it was approved ({shortened(what, _MOST_REASON)})"
        return f"{told}; look at `toolbus secure pins show {name}`, then `toolbus secure approve {name}`"


_MOST_FORMER = 1_000
_OF_PLATFORM = frozenset(kind for kind, about in DOCUMENT_KINDS.items() if about.of_platform)


class Documents(msgspec.Struct, eq=False):
    """Stored documents by key.

    Attributes:
        version: counts the changes, so that what was read can be kept until the next one.
    """

    by_key: dict[str, bytes] = {}
    version: int = 0

    def take(self, key: str, document: bytes | None) -> None:
        """Take in that a document changed, or was deleted (None)."""
        self.version += 1
        _put(self.by_key, key, document)


class Catalogue:
    """Keeps the tools up to date from the registry's snapshot and changes.

    Args:
        require_approval: withhold tools that no operator has approved.
    """

    def __init__(self, *, require_approval: bool = False) -> None:
        self.withholding = Withholding(required=require_approval)
        self.tools: dict[str, Tool] = {}
        self.services: dict[str, ServiceRecord] = {}
        self.static_services: dict[str, ServiceDescriptor] = {}
        self._static_tools: dict[str, Any] = {}
        # What was corrected in static tools since the log told it, by service and tool.
        self._corrections: dict[str, dict[str, list[str]]] = {}
        self._refused_items: dict[str, RefusedTool] = {}
        self._refused_services: dict[str, RefusedTool] = {}
        self._tools_of: dict[str, dict[str, Tool]] = {}
        # The tools that went last, each with when (monotonic seconds).
        self.former: Latest[str, tuple[Tool, float]] = Latest(_MOST_FORMER)
        # Counts changes of tools, so that what was made of them can be kept until the next one.
        self.version = 0
        # Published toolkit presets by name, which are parsed when the graph is first used.
        self.presets: dict[str, bytes] = {}
        self.presets_version = 0
        # Stored groups of tools, by id.
        self.groups: dict[str, ToolGroup] = {}
        # Stored documents that others read, too.
        self.documents = Documents()
        self._queues = Queues()
        self._names: list[str] | None = None
        self._restricted = (0, False)
        self._subscriptions: list[Subscription] = []
        # Everybody who waits for a change, in the order in which they came.
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    # -- reading ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Every tool's name, sorted."""
        if self._names is None:
            self._names = sorted(self.tools)
        return self._names

    def restricted(self) -> bool:
        """Return whether any tool is for some tenants alone."""
        if self._restricted[0] != self.version:
            self._restricted = (self.version, any(tool.descriptor.tenants for tool in self.tools.values()))
        return self._restricted[1]

    def refused(self) -> list[RefusedTool]:
        """Return what the registry holds and this agent can't use, with the reason, sorted; everything else can be used."""
        published = (tool for record in self.services.values() for tool in record.refused)
        withheld = (RefusedTool(name, tool.service, reason) for name, (tool, reason) in self.withholding.tools.items())
        return sorted([*published, *self._hidden(), *self._refused_services.values(), *self._refused_items.values(), *withheld])

    def near(self, name: str, user: str | None = None) -> list[str]:
        """Return names that look like a wrong one, of tools that a user may see; of all tools for None."""
        names = self.names()
        if user is not None and self.restricted():
            names = [each for each in names if self.tools[each].is_for(user)]
        return difflib.get_close_matches(name, names, n=3, cutoff=0.5)

    def service(self, id: str) -> tuple[ServiceDescriptor | None, bool]:
        """Return the descriptor of a service, named by its id or queue, or None, and whether it can be called now.

        A static descriptor is answered by the service that takes from the queue it names.
        """
        static = self.static_services.get(id)
        record = self.services.get(id) or self._queues.serving(id if static is None else static.queue)
        if record is None:
            return static, False
        service = record.publication.service
        return service, record.live or service.scale_to_zero

    def subscription(self) -> Subscription:
        """Return a new subscription to changes; leaving its context ends it."""
        subscription = Subscription(self._subscriptions.remove)
        self._subscriptions.append(subscription)
        return subscription

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` holds; it is asked again at each change, before anybody who comes later.

        Raises:
            Exception: what ``ready`` raises.
        """
        if ready():
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = ready
        try:
            await waiting
        finally:
            del self._waiting[waiting]

    def wake(self) -> None:
        """Make everybody who waits look again."""
        for waiting, ready in [*self._waiting.items()]:
            if waiting.done():
                continue
            try:
                if ready():
                    waiting.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised where it is waited
                waiting.set_exception(error)

    def close(self) -> None:
        """End every subscription, and wake everybody who waits."""
        self.wake()
        for subscription in self._subscriptions:
            subscription.close()

    # -- changes ----------------------------------------------------------------------------------

    def on_registry(self, services: Mapping[str, ServiceRecord | RefusedTool], items: Mapping[str, bytes | RefusedTool]) -> None:
        """Replace everything known by a snapshot."""
        before = set(self.services) | set(self._tools_of) | {tool.service for tool, _ in self.withholding.tools.values()}
        groups = self.groups
        self.services = {name: found for name, found in services.items() if isinstance(found, ServiceRecord)}
        self._refused_services = {name: found for name, found in services.items() if isinstance(found, RefusedTool)}
        self._queues = Queues(self.services)
        self.static_services = {}
        self._static_tools = {}
        self._refused_items = {}
        self.presets = {}
        self.presets_version += 1
        self.withholding.pins = {}
        self.groups = {}
        self.documents.by_key.clear()
        self.documents.version += 1
        for key, document in items.items():
            if isinstance(document, RefusedTool):
                self._refused_items[key] = document
            else:
                self._take_item(key, document)
        for service in before | set(self.services) | set(self.static_services) | self._services_of_items():
            self._settle(service)
        # Models are told of groups in the definitions of their tools.
        self.version += self.groups != groups
        self._log_corrections()
        self.wake()

    def on_service(self, service: str, change: ServiceRecord | RefusedTool | None) -> None:
        """Take in a service's change, or why it can't be read now."""
        record = change if isinstance(change, ServiceRecord) else None
        _put(self.services, service, record)
        _put(self._refused_services, service, change if isinstance(change, RefusedTool) else None)
        queues = self._queues.put(service, record)
        for each in dict.fromkeys((service, *(name for name, static in self.static_services.items() if static.queue in queues))):
            self._settle(each)
        self.wake()

    def on_item(self, key: str, document: bytes | None) -> None:
        """Take in a static descriptor's change."""
        kind, _, name = key.partition("/")
        if kind in _OF_PLATFORM:
            self._take_item(key, document)
            self.version += kind == "group"
            self.wake()
            return
        before = self._services_of_items()
        self._take_item(key, document)
        concerned = {name} if kind == "tool-service" else self._services_of(name) if kind == "pin" else set()
        for service in concerned if kind == "pin" else before | self._services_of_items() | concerned:
            self._settle(service)
        self._log_corrections()
        self.wake()

    # -- inside -----------------------------------------------------------------------------------

    def _hidden(self) -> list[RefusedTool]:
        """Return the tools whose names another service has."""
        named = [(tool.name, service) for service, record in self.services.items() for tool in record.publication.tools]
        named += [(name, document["service"]) for name, document in self._static_tools.items()]
        found = [(name, service, self.tools.get(name)) for name, service in named]
        why = "the service {!r} has a tool of this name; give one of them another"
        return [RefusedTool(name, service, why.format(tool.service)) for name, service, tool in found if tool and tool.service != service]

    def _services_of(self, name: str) -> set[str]:
        """Return the services that offer a tool of this name."""
        found = {service for service, record in self.services.items() if any(tool.name == name for tool in record.publication.tools)}
        return found | ({self._static_tools[name]["service"]} if name in self._static_tools else set())

    def _services_of_items(self) -> set[str]:
        return {document["service"] for document in self._static_tools.values()}

    def _take_item(self, key: str, document: bytes | None) -> None:
        kind, _, name = key.partition("/")
        self._refused_items.pop(key, None)
        if flaw := key_flaw(key):
            _put(self._refused_items, key, None if document is None else RefusedTool(key, "?", flaw))
        elif kind == "toolkit":
            self.presets_version += 1
            _put(self.presets, name, document)
        elif kind == "pin":
            self.withholding.take(name, document)
        else:
            if kind in _OF_PLATFORM:
                self.documents.take(key, document)
            self._read_item(kind, name, document)

    def _read_item(self, kind: str, name: str, document: bytes | None) -> None:
        tables: Mapping[str, dict[str, Any]] = {"tool": self._static_tools, "tool-service": self.static_services, "group": self.groups}
        if kind not in tables:
            return
        # An invalid document removes the one before, so that this agent sees the same as agents that start later.
        tables[kind].pop(name, None)
        decoded: Any = None
        try:
            if document is not None and kind == "group":
                self.groups[name] = read_group(name, document)
            elif document is not None:
                decoded = msgspec.json.decode(document)
                _put(tables[kind], name, self._descriptor(kind, name, decoded))
        except (DescriptorError, *DECODE_ERRORS, TypeError) as error:
            self._refuse_item(f"{kind}/{name}", decoded, error)

    def _descriptor(self, kind: str, name: str, decoded: object) -> ServiceDescriptor | dict[str, Any] | None:
        """Return a static service, or the document of a static tool, or None for one that is no tool of toolbus.

        Raises:
            DescriptorError: it can't be used.
        """
        if not isinstance(decoded, dict):
            raise DescriptorError(f"a descriptor is a JSON object, not {type_name(decoded)}")
        if kind == "tool" and not is_tool_document(decoded):
            return None
        if kind == "tool-service":
            service = parse_service({**decoded, "id": decoded.get("id", name)})
            _check_name(service.id, name)
            return service
        proper, changes = mended_document(decoded)
        _check_name(parse_tool(proper, None).name, name)
        if changes:
            self._corrections.setdefault(proper["service"], {})[name] = changes
        return proper

    def _log_corrections(self) -> None:
        for service, corrections in self._corrections.items():
            telemetry.log.warning("descriptor.mended", service=service, **summary(corrections))
        self._corrections.clear()

    def _refuse_item(self, key: str, document: object, error: Exception) -> None:
        kind, _, name = key.partition("/")
        service = document.get("service") if isinstance(document, dict) else None
        found = RefusedTool(name, str(service or "?")[:128], str(error)) if kind == "tool" else RefusedTool(ALL_TOOLS, name, str(error))
        # The services of a namespace may change often, and each change looks at their tools again.
        if self._refused_items.get(key) != found:
            self._refused_items[key] = found
            telemetry.log.warning("descriptor.invalid", key=key, error=str(error))

    def _settle(self, service: str) -> None:
        """Make one service's tools what the registry says now, and announce the differences."""
        after = self._current(service)
        before = self._tools_of.get(service, {})
        for name, tool in before.items():
            if name not in after and self.tools.get(name) is tool:
                del self.tools[name]
                self._names = None
                self.former[name] = tool, time.monotonic()
                self._announce("removed", tool)
        kept: dict[str, Tool] = {}
        for name, tool in after.items():
            known = self.tools.get(name)
            if known is None:
                self._names = None
                self.former.pop(name, None)
            elif known.service != service and known.available:
                # First wins: the registry settles it, and this view catches up with its next change.
                telemetry.log.warning("tool.name_taken", tool=name, service=service, holder=known.service)
                continue
            elif known == tool:
                # Another tool of its service may have changed, and with it the digest that calls name.
                self.tools[name] = kept[name] = known if known.digest == tool.digest else tool
                continue
            self.tools[name] = kept[name] = tool
            self._announce("added" if known is None else "updated", tool)
        _put(self._tools_of, service, kept or None)

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
                tool = parse_tool(document, declared)
            except DescriptorError as error:
                self._refuse_item(f"tool/{name}", document, error)
                continue
            self._refused_items.pop(f"tool/{name}", None)
            tools[name] = Tool(tool, descriptor, available=available, owner="operator", digest="")
        if record is not None:
            publication = record.publication
            for tool in publication.tools:
                tools[tool.name] = Tool(tool, publication.service, available=available, owner=publication.owner, digest=publication.digest)
        return self.withholding.admitted(service, tools)

    def _announce(self, kind: ChangeKind, tool: Tool) -> None:
        self.version += 1
        change = ToolChange(kind, tool.name, tool)
        for subscription in self._subscriptions:
            subscription.put(change)


def _put(table: dict[str, T], key: str, value: T | None) -> None:
    """Set an entry of a table; None removes it."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _check_name(found: str, expected: str) -> None:
    if found != expected:
        raise DescriptorError(f"the descriptor names {found!r}, its key {expected!r}")


def unusable(catalogue: Catalogue) -> list[RefusedTool]:
    """Return what agents leave out, and the tools that they know and can't call, sorted."""
    found: list[RefusedTool] = []
    for tool in catalogue.tools.values():
        try:
            check_possible(tool.descriptor.schema or {})
        except DescriptorError as error:
            found.append(RefusedTool(tool.name, tool.service, str(error)))
    return sorted([*catalogue.refused(), *found])


def catalogue_of(
    snapshot: tuple[Mapping[str, ServiceRecord | RefusedTool], Mapping[str, bytes | RefusedTool]], *, require_approval: bool = False
) -> Catalogue:
    """Return a catalogue as an agent has it that loads this snapshot of services and static documents."""
    catalogue = Catalogue(require_approval=require_approval)
    catalogue.on_registry(*snapshot)
    return catalogue
