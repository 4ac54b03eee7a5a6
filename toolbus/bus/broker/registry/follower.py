"""Readers of the registry: snapshots of its tables, and the changes that its log tells of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import ALL_TOOLS, AgentListener, Gone, RefusedTool, ServiceRecord
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import integer, shown, skip, text, uses_up
from toolbus.bus.broker.transport.command import fields_of
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash, server_ms
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, check_service
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.pins import KEY as PIN
from toolbus.bus.values.results import DescriptorError, EnvelopeError

T = TypeVar("T")

GONE_SEEN = 86_400.0
"""Seconds for which people see a service without workers."""


class RegistryFollower:
    """Keeps a listener up to date: a snapshot, then the log's changes in order.

    ``position`` is the log id to read after. ``follow`` returns False when a change is
    missing, and then ``load`` must be run again.
    """

    def __init__(self, link: Link, keys: Keys, listener: AgentListener) -> None:
        self._link = link
        self._keys = keys
        self._listener = listener
        self._token: bytes | None = None
        # The tables' token, while no entry of the log has had it.
        self._unread: bytes | None = None
        self.position: bytes = b"0"

    async def load(self) -> None:
        """Load a fresh snapshot, in bounded parts that never block the server for long."""
        # The position is read first: a change during the scan is read twice rather than missed.
        newest, self._token = await asyncio.gather(
            self._link.execute("XREVRANGE", self._keys.log, "+", "-", "COUNT", 1, repeatable=True), self._current()
        )
        if newest and uses_up(newest[0][0]):
            # Entries that are added to a log that was made anew would stand before our position.
            skip(self._keys.log, "the id of an entry leaves no room for others; the log is made anew", field=newest[0][0])
            await self._link.execute("DEL", self._keys.log, repeatable=True)
            newest = []
        self.position, self._unread = newest[0][0] if newest else b"0", None
        self._listener.on_registry(await read_services(self._link, self._keys), await read_items(self._link, self._keys))

    async def lags(self) -> bool:
        """Return whether the tables had changed when this was asked last, and no entry has told of it since.

        A forged entry, or one with a lower id than the last that was read, leaves the listener without the changes behind it.

        Raises:
            BrokerError: the server could not be asked.
        """
        read = self._token
        current = await self._current()
        if self._token != read:
            # Entries came meanwhile, maybe the one that is looked for.
            return False
        lags = self._unread is not None and current != read
        self._unread = None if lags or current == read else current
        return lags

    async def follow(self, entries: list[tuple[bytes, list[bytes]]]) -> bool:
        """Read the documents that log entries are about, and apply the entries; False when one is missing before them.

        Raises:
            BrokerError: documents that changed could not be read; nothing was applied.
        """
        return self.apply(entries, await self._documents(fields_of(flat) for _, flat in entries))

    def apply(self, entries: list[tuple[bytes, list[bytes]]], documents: Mapping[str, bytes | None] = MappingProxyType({})) -> bool:
        """Apply log entries; False when one is missing before them.

        Args:
            documents: what documents are now, by key, whatever the entries say of them.
        """
        for entry, flat in entries:
            fields = fields_of(flat)
            before = fields.get(b"prev")
            if uses_up(entry) or (self._token is not None and before != self._token):
                return False
            self.position, self._token = entry, fields.get(b"token")
            if self._token == self._unread:
                self._unread = None
            try:
                self._change(fields, documents)
            except EnvelopeError as error:
                skip(self._keys.log, error, field=fields.get(b"op", b""))
        return True

    async def _current(self) -> bytes | None:
        found: bytes | None = await self._link.execute("HGET", self._keys.meta, "token", repeatable=True)
        return found

    async def _documents(self, changes: Iterable[dict[bytes, bytes]]) -> dict[str, bytes | None]:
        """Return what documents are now that changed and stand apart: more processes may write the log than their tables."""
        sought: dict[str, dict[str, None]] = {}
        for fields in changes:
            with contextlib.suppress(EnvelopeError):
                key = text(fields.get(b"key", b""))
                table = self._keys.table(key)
                if fields.get(b"op") == b"item" and table != self._keys.items:
                    sought.setdefault(table, {})[key] = None
        found: dict[str, bytes | None] = {}
        for table, keys in sought.items():
            found |= zip(keys, await self._link.execute("HMGET", table, *keys, repeatable=True), strict=True)
        return found

    def _change(self, fields: dict[bytes, bytes], documents: Mapping[str, bytes | None]) -> None:
        op, key = fields.get(b"op", b""), text(fields.get(b"key", b""))
        said = fields.get(b"doc", b"")
        if op == b"item":
            self._listener.on_item(key, documents.get(key, said or None))
        elif op == b"gone":
            self._listener.on_service(key, None)
        elif op in {b"up", b"down"}:
            self._listener.on_service(key, _read_logged(key, (b"+" if op == b"up" else b"-") + said))


def _read_logged(service: str, value: bytes) -> ServiceRecord | RefusedTool:
    """Return a service's record, or the reason why it can't be read; that, and parts that can't be used, are logged."""
    try:
        record = _record_of(service, value)
    except DescriptorError as error:
        telemetry.log.warning("registry.unreadable", service=service, error=str(error))
        return RefusedTool(ALL_TOOLS, service, str(error))
    for tool in record.refused:
        telemetry.log.warning("descriptor.invalid", key=f"{service}/{tool.name}", error=tool.reason)
    return record


def _record_of(service: str, value: bytes) -> ServiceRecord:
    record = read_record(value)
    named = record.publication.service.id
    if named != service:
        raise DescriptorError(f"it describes another service, {shown(named)!r}", path="$.service.id")
    return record


async def read_services(link: Link, keys: Keys) -> dict[str, ServiceRecord | RefusedTool]:
    """Return the services by name, with the reason in place of one that can't be read.

    Raises:
        BrokerError: the server could not be asked.
    """

    def refused(name: str, reason: str) -> RefusedTool:
        return RefusedTool(ALL_TOOLS, name, f"its name can't be read: {reason}")

    return await _read_all(link, keys.services, _read_logged, refused)


async def read_gone(link: Link, keys: Keys) -> dict[str, ServiceRecord]:
    """Return the services that were in the registry within the last day, by name.

    Raises:
        BrokerError: the server could not be asked.
    """
    value, now = await asyncio.gather(link.execute("HGET", keys.meta, "gone", repeatable=True), server_ms(link))
    found: dict[str, ServiceRecord] = {}
    for line in (value or b"").split(b"\n"):
        words = line.split(b" ", 4)
        try:
            service, queue, at, left, owner = map(text, words)
            gone = Gone(integer(at) / 1000, left=left == "1")
            descriptor = check_service(ServiceDescriptor(service, request_queue="" if queue == service else queue))
        except (DescriptorError, EnvelopeError, ValueError) as error:
            if line:
                skip(keys.meta, str(error), field="gone")
            continue
        if abs(now / 1000 - gone.at) < GONE_SEEN:
            found[service] = ServiceRecord(Publication(descriptor, owner=owner), live=False, gone=gone)
    return found


async def read_items(link: Link, keys: Keys) -> dict[str, bytes | RefusedTool]:
    """Return the static documents by key, with the reason in place of one whose key can't be read.

    Raises:
        BrokerError: the server could not be asked.
    """

    def refused(name: str, reason: str) -> RefusedTool:
        return RefusedTool(name, "?", f"its key can't be read: {reason}")

    def usable(key: str, document: bytes) -> bytes | RefusedTool:
        flaw = key_flaw(key)
        return RefusedTool(key, "?", flaw) if flaw else document

    tables = await asyncio.gather(*(_read_all(link, table, usable, refused) for table in keys.tables()))
    found: dict[str, bytes | RefusedTool] = {}
    placed: dict[str, bytes | RefusedTool] = {}
    for table, documents in zip(keys.tables(), tables, strict=True):
        # A document that does not stand where its kind does was written by somebody who may not decide it, or by an older toolbus.
        placed |= {key: each for key, each in documents.items() if keys.table(key) == table}
        others = {key: each for key, each in documents.items() if keys.table(key) != table}
        found |= {key: each if isinstance(each, RefusedTool) else _misplaced(key) for key, each in others.items()}
    return found | placed


def _misplaced(key: str) -> bytes | RefusedTool:
    """Return what stands for a document that is not in its table; a pin that can't be read withholds its tool."""
    if key.startswith(PIN):
        return b""
    ways = f"`toolbus operate items rm {key}` removes it, `toolbus operate migrate` moves it there"
    return RefusedTool(key, "?", f"it is not in the table of its kind, and any worker could have written it: look at it first; {ways}")


async def _read_all(
    link: Link, table: str, read: Callable[[str, bytes], T | RefusedTool], refused: Callable[[str, str], RefusedTool]
) -> dict[str, T | RefusedTool]:
    found: dict[str, T | RefusedTool] = {}
    async for name, value in scan_hash(link, table):
        try:
            key = text(name)
        except EnvelopeError as error:
            skip(table, error, field=name)
            found[shown(name)] = refused(shown(name), str(error))
        else:
            found[key] = read(key, value)
    return found
