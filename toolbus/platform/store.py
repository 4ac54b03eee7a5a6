"""``Records``: the records of tools, groups and backend runtimes, read and changed in one place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from toolbus.bus.broker.protocols import ItemChange
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values import pins
from toolbus.bus.values.pins import check_prefix
from toolbus.bus.values.results import ConfigurationError, DescriptorError, ToolbusError
from toolbus.platform.documents import Record, digest_of, encode, is_platform_key, key_of, read
from toolbus.platform.records import PENDING_KEY, RECORD_KEY, BackendRuntime, RecordedTool
from toolbus.platform.search import pin_of

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin

T = TypeVar("T")

# Changes of others that one change gives way to.
_TRIES = 8
# Seconds in which a bus has heard of what was changed.
_HEARD = 2.0
# Documents that one script writes.
_AT_ONCE = 50


class Refused(msgspec.Struct, frozen=True):
    """A stored record that can't be used, and why."""

    key: str
    reason: str


class Snapshot(msgspec.Struct, frozen=True):
    """All records at one time, each kind by id and sorted.

    Attributes:
        tools: recorded ones, approved.
        pending: new tools and new revisions that wait for approval.
        refused: what is stored and can't be used.
    """

    tools: dict[str, RecordedTool]
    pending: dict[str, RecordedTool]
    groups: dict[str, ToolGroup]
    runtimes: dict[str, BackendRuntime]
    refused: tuple[Refused, ...] = ()


class Conflict(ToolbusError):
    """A record was changed by somebody else at the same time."""


class Reader:
    """Reads items, and keeps what each document was read as until it changes."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, Record | Refused]] = {}

    def snapshot(self, items: Mapping[str, bytes]) -> Snapshot:
        """Return the records in the platform's items."""
        self._read = {key: self._one(key, items[key]) for key in sorted(filter(is_platform_key, items))}
        found = Snapshot({}, {}, {}, {})
        refused: list[Refused] = []
        for key, (_, each) in self._read.items():
            if isinstance(each, Refused):
                refused.append(each)
            elif isinstance(each, RecordedTool):
                (found.pending if key.startswith(PENDING_KEY) else found.tools)[each.tool_id] = each
            elif isinstance(each, ToolGroup):
                found.groups[each.group_id] = each
            else:
                found.runtimes[each.backend_runtime] = each
        return msgspec.structs.replace(found, refused=tuple(refused))

    def _one(self, key: str, document: bytes) -> tuple[bytes, Record | Refused]:
        known = self._read.get(key)
        if known is not None and known[0] == document:
            return known
        try:
            return document, read(key, document)
        except DescriptorError as error:
            return document, Refused(key, str(error))


class LiveRecords:
    """The records that a bus has heard of, read when they are asked for.

    Wait for changes with ``bus.tools.catalogue.wait(lambda: live.version != seen)``.
    """

    def __init__(self, bus: ToolBus) -> None:
        self._catalogue = bus.tools.catalogue
        self._reader = Reader()
        self._made = (-1, Snapshot({}, {}, {}, {}))

    @property
    def version(self) -> int:
        """Another number after each change."""
        return self._catalogue.documents.version

    def snapshot(self) -> Snapshot:
        """Return the records as they are now, without asking the server."""
        if self._made[0] != self.version:
            self._made = (self.version, self._reader.snapshot(self._catalogue.documents.by_key))
        return self._made[1]


class Records:
    """The records, for an operator's connection or a bus.

    Over a bus it reads what the bus has heard of; after a change of its own that may take a moment.

    Args:
        of: an ``Admin`` or a ``ToolBus``, open.
    """

    def __init__(self, of: Admin | ToolBus) -> None:
        self._of = of
        self._reader = Reader()

    async def all(self) -> Snapshot:
        """Return all records.

        Raises:
            BrokerError: the server could not be asked.
        """
        return self._reader.snapshot(await self._items())

    async def get(self, tool_id: str) -> RecordedTool | None:
        """Return the approved record of a tool, or None.

        Raises:
            DescriptorError: what is stored can't be used.
            BrokerError: the server could not be asked.
        """
        return await self._one(f"{RECORD_KEY}{tool_id}")

    async def pending(self, tool_id: str) -> RecordedTool | None:
        """Return the record of a tool that waits for approval, or None.

        Raises:
            DescriptorError: what is stored can't be used.
            BrokerError: the server could not be asked.
        """
        return await self._one(f"{PENDING_KEY}{tool_id}")

    async def put(self, record: Record, *, pending: bool = False) -> None:
        """Store a record, in place of one with the same id.

        Args:
            pending: let a tool wait for approval, beside the approved one.

        Raises:
            DescriptorError: it is wrong; the message names the field.
            BrokerError: the server could not be reached.
        """
        document, key = encode(record), key_of(record, pending=pending)
        await self._change(lambda items: ([ItemChange(key, items.get(key), document)], None))

    async def put_after(self, record: RecordedTool, seen: Snapshot, *, pending: bool = False) -> None:
        """Store a tool's record, unless its waiting or its approved one is another than in ``seen``.

        Raises:
            DescriptorError: it is wrong; the message names the field.
            Conflict: somebody else has changed one of them meanwhile.
            BrokerError: the server could not be reached.
        """
        document, key, tool = encode(record), key_of(record, pending=pending), record.tool_id

        def changes(items: Mapping[str, bytes]) -> tuple[list[ItemChange], None]:
            now = self._reader.snapshot(items)
            if (now.pending.get(tool), now.tools.get(tool)) != (seen.pending.get(tool), seen.tools.get(tool)):
                raise Conflict(f"the tool {tool!r} was recorded or changed by somebody else meanwhile")
            # The one that stays as it is takes part, so that it is compared at the server.
            both = {each: items.get(each) for each in (f"{PENDING_KEY}{tool}", f"{RECORD_KEY}{tool}")}
            return [ItemChange(each, before, document if each == key else before) for each, before in both.items()], None

        await self._change(changes)

    async def revise(self, tool_id: str, change: Callable[[RecordedTool], RecordedTool]) -> RecordedTool:
        """Store what ``change`` makes of an approved record, of its newest form if others change it, too.

        Raises:
            ConfigurationError: there is none, or what is stored can't be used.
            DescriptorError: what it makes is wrong.
            Conflict: others change it all the time.
        """
        key = f"{RECORD_KEY}{tool_id}"

        def changes(items: Mapping[str, bytes]) -> tuple[list[ItemChange], RecordedTool]:
            if key not in items:
                raise ConfigurationError(f"no tool {tool_id!r} is recorded")
            after = change(_tool(key, items[key]))
            return [ItemChange(key, items[key], encode(after))], after

        return await self._change(changes)

    async def remove(self, key: str) -> bool:
        """Delete what is stored under a key, readable or not; False when there was nothing.

        Raises:
            BrokerError: the server could not be reached.
        """

        def changes(items: Mapping[str, bytes]) -> tuple[list[ItemChange], bool]:
            found = items.get(key)
            return ([] if found is None else [ItemChange(key, found, None)]), found is not None

        return await self._change(changes)

    async def approve(self, tool_id: str, *, digest: str = "", by: str = "", reason: str = "") -> RecordedTool:
        """Make what waits for approval the tool that is served, at once; return it.

        Over an operator's connection its descriptor is pinned with it, so that it needs no other approval.

        Args:
            digest: approve only the form with this digest (see ``digest_of``), or its first 16 digits or more.
            by: who decides it, for the pin.
            reason: why, for the pin.

        Raises:
            ConfigurationError: nothing waits, or it has another digest.
            DescriptorError: it can't be used.
            Conflict: others change it all the time.
        """
        check_prefix(digest)
        waiting, approved, pin = f"{PENDING_KEY}{tool_id}", f"{RECORD_KEY}{tool_id}", f"{pins.KEY}{tool_id}"

        def changes(items: Mapping[str, bytes]) -> tuple[list[ItemChange], RecordedTool]:
            document = _waiting(items, tool_id)
            tool = _tool(waiting, document)
            found = digest_of(tool)
            if digest and not found.startswith(digest):
                raise ConfigurationError(f"the tool {tool_id!r} that waits has the digest {found} now, not {digest!r}; look at it again")
            made = [ItemChange(waiting, document, None), ItemChange(approved, items.get(approved), encode(tool))]
            if not isinstance(self._of, ToolBus):
                made.append(ItemChange(pin, items.get(pin), pin_of(tool, by=by, reason=reason)))
            return made, tool

        return await self._change(changes)

    async def reject(self, tool_id: str, *, digest: str = "") -> RecordedTool | None:
        """Delete what waits for approval; return it, or None if it could not be read.

        Raises:
            ConfigurationError: nothing waits, or it has another digest.
            Conflict: others change it all the time.
        """
        check_prefix(digest)
        waiting = f"{PENDING_KEY}{tool_id}"

        def changes(items: Mapping[str, bytes]) -> tuple[list[ItemChange], RecordedTool | None]:
            document, known = _waiting(items, tool_id), None
            with contextlib.suppress(DescriptorError):
                known = _tool(waiting, document)
            if digest and (known is None or not digest_of(known).startswith(digest)):
                raise ConfigurationError(f"the tool {tool_id!r} that waits does not have the digest {digest!r}; look at it again")
            return [ItemChange(waiting, document, None)], known

        return await self._change(changes)

    async def put_all(self, records: Sequence[Record]) -> dict[str, str]:
        """Store records; return by key what each is: ``new``, ``changed`` or ``unchanged``.

        Each is stored as a whole; when others store the same ones meanwhile, the last of them stays.

        Raises:
            DescriptorError: one is wrong; nothing is stored then.
        """
        documents = {key_of(each): encode(each) for each in records}
        answer: dict[str, str] = {}
        keys = list(documents)
        for at in range(0, len(keys), _AT_ONCE):
            part = {key: documents[key] for key in keys[at : at + _AT_ONCE]}
            answer |= await self._change(functools.partial(_stored, part))
        return answer

    async def change(self, changes: Callable[[Snapshot], Iterable[Record]]) -> None:
        """Store the records that ``changes`` makes of all of them, at once.

        Raises:
            DescriptorError: one is wrong.
            Conflict: others change them all the time.
        """

        def made(items: Mapping[str, bytes]) -> tuple[list[ItemChange], None]:
            found = [(key_of(each), encode(each)) for each in changes(self._reader.snapshot(items))]
            return [ItemChange(key, items.get(key), document) for key, document in found if items.get(key) != document], None

        await self._change(made)

    async def _one(self, key: str) -> RecordedTool | None:
        document = (await self._items()).get(key)
        return None if document is None else _tool(key, document)

    async def _change(self, changes: Callable[[Mapping[str, bytes]], tuple[list[ItemChange], T]]) -> T:
        """Make changes of what is stored now; again when somebody else was quicker."""
        other = ""
        for _ in range(_TRIES):
            wanted, answer = changes(await self._items())
            other = await self._of.replace(wanted) if wanted else ""
            if not other:
                return answer
            if isinstance(self._of, ToolBus):
                await _newer(self._of)
        raise Conflict(f"{other} is changed by others all the time; try again")

    async def _items(self) -> Mapping[str, bytes]:
        """Return the items as they are known, with pins for an operator, who decides of them."""
        if isinstance(self._of, ToolBus):
            return self._of.tools.catalogue.documents.by_key
        return {key: document for key, document in (await self._of.items()).items() if is_platform_key(key) or key.startswith(pins.KEY)}


async def _newer(bus: ToolBus) -> None:
    """Wait until a bus has heard of something newer, which takes a moment."""
    catalogue = bus.tools.catalogue
    seen = catalogue.documents.version
    await at_most(_HEARD, catalogue.wait(lambda: catalogue.documents.version != seen))


def _tool(key: str, document: bytes) -> RecordedTool:
    found = read(key, document)
    assert isinstance(found, RecordedTool)  # noqa: S101 - its key says so
    return found


def _waiting(items: Mapping[str, bytes], tool_id: str) -> bytes:
    if (document := items.get(f"{PENDING_KEY}{tool_id}")) is None:
        raise ConfigurationError(f"no tool {tool_id!r} waits for approval")
    return document


def _stored(documents: Mapping[str, bytes], items: Mapping[str, bytes]) -> tuple[list[ItemChange], dict[str, str]]:
    """Return the changes that store documents, and what each of them is."""
    differing = {key: document for key, document in documents.items() if items.get(key) != document}
    words = {key: "unchanged" if key not in differing else "changed" if key in items else "new" for key in documents}
    return [ItemChange(key, items.get(key), document) for key, document in differing.items()], words
