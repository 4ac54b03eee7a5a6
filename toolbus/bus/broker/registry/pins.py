"""Keep which form of each tool an operator has approved."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

import msgspec

from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord
from toolbus.bus.broker.registry.follower import read_items, read_services
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import shown, skip
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.schema.mend import mended_document
from toolbus.bus.values import pins
from toolbus.bus.values.descriptors import ToolDescriptor, is_tool_document, parse_tool
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.pins import Pin
from toolbus.bus.values.results import ConfigurationError, DescriptorError

State = Literal["approved", "changed", "rejected", "unpinned", "unreadable", "gone"]
"""``unpinned``: no decision; ``gone``: a decision about a tool that nobody offers now."""


class PinnedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool with the decision about it.

    Attributes:
        state: see ``State``.
        service: that offers it now; empty when none does.
        digest: of its present form.
        approved: the digest that was approved.
        changes: fields that are not as they were approved.
        by, reason, at: who decided it, why, and when (seconds since 1970).
    """

    name: str
    state: State
    service: str = ""
    digest: str = ""
    approved: str = ""
    changes: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    at: float = 0.0


class Pins:
    """The decisions about the tools of a namespace."""

    def __init__(self, link: Link, keys: Keys, registry: Registry) -> None:
        self._link = link
        self._keys = keys
        self._registry = registry

    async def all(self) -> list[PinnedTool]:
        """Return every tool that is offered or has a pin, by name.

        Raises:
            BrokerError: the server could not be asked.
        """
        tools, decided = await self._snapshot()
        return [_described(name, tools.get(name), decided) for name in sorted({*tools, *decided})]

    async def offered(self) -> dict[str, ToolDescriptor]:
        """Return the tools that are offered now, by name, whether they are withheld or not.

        Raises:
            BrokerError: the server could not be asked.
        """
        return (await self._snapshot())[0]

    async def approve(self, name: str, *, by: str = "", reason: str = "", digest: str = "") -> PinnedTool:
        """Approve a tool as it is now; with a ``digest`` (or its first 16 digits or more), only the form that has it.

        Raises:
            ConfigurationError: nobody offers the tool, it has another digest, or too few digits are given.
            BrokerError: the server refuses it.
        """
        pins.check_prefix(digest)
        tools, _ = await self._snapshot()
        tool = tools.get(name)
        if tool is None:
            raise ConfigurationError(
                f"nobody offers a tool {shown(name)!r}, so there is nothing to approve; `toolbus secure pins list` shows them"
            )
        found = pins.digest_of(tool)
        if digest and not found.startswith(digest):
            raise ConfigurationError(f"the tool {name!r} has the digest {found} now, not {shown(digest)}; look at it again")
        pin = pins.approved(tool, by=by, reason=reason, at=_now())
        await self._put(name, pin)
        return _described(name, tool, {name: pin})

    async def reject(self, name: str, *, by: str = "", reason: str = "") -> PinnedTool:
        """Withhold a tool in every form, also one that nobody offers yet.

        Raises:
            ConfigurationError: no tool can have such a name.
            BrokerError: the server refuses it.
        """
        tools, _ = await self._snapshot()
        pin = Pin("rejected", by=by, reason=reason, at=_now())
        await self._put(name, pin)
        return _described(name, tools.get(name), {name: pin})

    async def remove(self, name: str) -> bool:
        """Forget the decision about a tool, and a document that withholds it like one; False when there was none.

        Raises:
            BrokerError: the server refuses it.
        """
        decided = await self._registry.delete_item(pins.KEY + name)
        return await self._registry.delete_misplaced(pins.KEY + name) or decided

    async def pin_new(self, tools: Iterable[ToolDescriptor], *, by: str = "") -> list[str]:
        """Approve those of these tools that have no pin, as they are; return their names.

        Raises:
            BrokerError: the server refuses it.
        """
        _, decided = await self._snapshot()
        made = [tool for tool in tools if tool.name not in decided]
        for tool in made:
            await self._put(tool.name, pins.approved(tool, by=by, at=_now()))
        return [tool.name for tool in made]

    async def _put(self, name: str, pin: Pin) -> None:
        if not name or len(name) > 128 or any(each in name for each in "/\\{}") or not name.isprintable() or " " in name:
            raise ConfigurationError(f"no tool can have the name {shown(name)!r}")
        try:
            document = pins.encoded(pin)
            pins.read(document)
        except (DescriptorError, UnicodeEncodeError) as error:
            raise ConfigurationError(f"this can't be kept as a decision: {error}") from None
        await self._registry.put_item(pins.KEY + name, document)

    async def _snapshot(self) -> tuple[dict[str, ToolDescriptor], dict[str, Pin | None]]:
        services, items = await read_services(self._link, self._keys), await read_items(self._link, self._keys)
        decided: dict[str, Pin | None] = {}
        for key, document in items.items():
            if key.startswith(pins.KEY) and isinstance(document, bytes):
                try:
                    decided[key.removeprefix(pins.KEY)] = pins.read(document)
                except DescriptorError as error:
                    decided[key.removeprefix(pins.KEY)] = None
                    skip(self._keys.pins, str(error), field=key)
        publications = [each.publication for each in services.values() if isinstance(each, ServiceRecord)]
        return _static(items, services) | {tool.name: tool for each in publications for tool in each.tools}, decided


def _static(items: dict[str, bytes | RefusedTool], services: dict[str, ServiceRecord | RefusedTool]) -> dict[str, ToolDescriptor]:
    found: dict[str, ToolDescriptor] = {}
    for key, document in items.items():
        if not key.startswith("tool/") or not isinstance(document, bytes):
            continue
        try:
            decoded = msgspec.json.decode(document)
            if not is_tool_document(decoded):
                continue
            # As agents read it.
            decoded, _ = mended_document(decoded)
            record = services.get(decoded["service"]) if isinstance(decoded.get("service"), str) else None
            tool = parse_tool(decoded, record.publication.service if isinstance(record, ServiceRecord) else None)
        except (DescriptorError, *DECODE_ERRORS, ValueError, TypeError):
            # Agents tell of it where they read it.
            continue
        found[tool.name] = tool
    return found


def _described(name: str, tool: ToolDescriptor | None, decided: dict[str, Pin | None]) -> PinnedTool:
    service, digest = ("", "") if tool is None else (tool.service, pins.digest_of(tool))
    if name not in decided:
        return PinnedTool(name, "unpinned", service, digest)
    pin = decided[name]
    if pin is None:
        return PinnedTool(name, "unreadable", service, digest)
    is_approved = tool is not None and pins.approves(pin, tool)
    differing = tuple(pins.changes(pin, tool)) if tool is not None and pin.state == "approved" and not is_approved else ()
    state: State = "rejected" if pin.state == "rejected" else "gone" if tool is None else "approved" if is_approved else "changed"
    return PinnedTool(name, state, service, digest, pin.digest, differing, pin.by, pin.reason, pin.at)


def _now() -> float:
    return round(time.time(), 3)
