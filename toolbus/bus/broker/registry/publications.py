"""Publications as they stand in the registry: read tool by tool, so that a bad one hides none of its siblings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import ALL_TOOLS, RefusedTool, ServiceRecord
from toolbus.bus.broker.registry.registry import RegisterAnswer, Registry
from toolbus.bus.broker.registry.versions import check_versions, read_version
from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import RequestStream
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.support.display import one_line
from toolbus.bus.support.waiting import each_of
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor, check_service, check_tool
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, DescriptorError, EnvelopeError, RegistrationRefused, ToolbusError

MOST_BYTES = 2 * 1024 * 1024
"""Longest document that is searched: what is searched holds up everything else meanwhile."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# A quote by itself opens a string that never ends: without a match of its own each later quote would be tried to the end.
_MARKS = re.compile(_STRING + rb'|[\[{]+|[\]}]+|,|"', re.DOTALL)
_KEY = re.compile(rb"\s*(" + _STRING + rb")\s*:", re.DOTALL)


class Piece(NamedTuple):
    """The place of a part in a document."""

    start: int
    end: int

    def of(self, document: bytes) -> bytes:
        """Return the part itself."""
        return document[self.start : self.end]


def elements(document: bytes) -> list[Piece]:
    """Return the elements of a list, or the keys with their values of an object, each unread.

    Raises:
        ValueError: the brackets and quotes don't fit, or the document is too long.
    """
    if len(document) > MOST_BYTES:
        raise ValueError(f"its {len(document)} bytes are over the limit of {MOST_BYTES}")
    found: list[Piece] = []
    depth = start = 0
    for mark in _MARKS.finditer(document):
        first = document[mark.start()]
        if first in b"[{":
            if depth == 0:
                start = mark.start() + 1
            depth += mark.end() - mark.start()
        elif first in b"]}":
            depth -= mark.end() - mark.start()
            if depth > 0:
                continue
            if depth < 0 or document[mark.end() :].strip():
                break
            last = Piece(start, mark.end() - 1)
            return [*found, last] if found or last.of(document).strip() else []
        elif first == ord(",") and depth == 1:
            found.append(Piece(start, mark.start()))
            start = mark.end()
        elif depth == 0 or mark[0] == b'"':
            break
    raise ValueError("its brackets and quotes don't fit")


def member(document: bytes, key: str) -> Piece | None:
    """Return where the value of an object's key is, None when it has no such key; raises as ``elements`` does."""
    wanted = b'"%b"' % key.encode()
    value = None
    for piece in elements(document):
        found = _KEY.match(document, piece.start, piece.end)
        if found is not None and found[1] == wanted:
            value = Piece(found.end(), piece.end)
    return value


_MOST_REASON = 300
# The parser takes half a surrogate pair right before the end for a document that was cut off, and would give that as the reason.
_BLANKS = b" " * 8
_UNREADABLE = (*DECODE_ERRORS, DescriptorError)


class _Named(msgspec.Struct):
    name: str


class _Apart(msgspec.Struct):
    """A publication whose tools are not read yet."""

    service: ServiceDescriptor
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    owner: str = ""
    digest: str = ""
    versions: tuple[int, int] | None = None


def read_record(value: bytes) -> ServiceRecord:
    """Return a service's record from its table value: ``+`` for live or ``-``, and the publication.

    Raises:
        DescriptorError: the service itself can't be read, with the reason.
    """
    live, document = value[:1] == b"+", value[1:]
    try:
        publication = msgspec.json.decode(document, type=Publication)
        check_versions(publication.versions)
        check_service(publication.service)
        for tool in publication.tools:
            check_tool(tool)
    except _UNREADABLE:
        return _read_apart(document, live=live)
    return ServiceRecord(publication, live)


def _read_apart(document: bytes, *, live: bool) -> ServiceRecord:
    try:
        apart = _service_of(document)
        check_versions(apart.versions)
        check_service(apart.service)
    except _UNREADABLE as error:
        raise DescriptorError(_reason(error)) from None
    service = apart.service.id
    refused: list[RefusedTool] = []
    tools: list[ToolDescriptor] = []
    for index, raw in enumerate(_listed(apart.tools, service, refused)):
        try:
            tools.append(check_tool(msgspec.json.decode(raw, type=ToolDescriptor)))
        except _UNREADABLE as error:
            refused.append(RefusedTool(_name(raw, index), service, _reason(error)))
    found = Publication(apart.service, tuple(tools), apart.owner, apart.digest, apart.versions)
    return ServiceRecord(found, live, tuple(refused))


def _service_of(document: bytes) -> _Apart:
    """Read a publication but for its tools, even if no parser takes these."""
    try:
        return msgspec.json.decode(document, type=_Apart)
    except _UNREADABLE:
        try:
            tools = member(document, "tools")
        except ValueError:
            tools = None
        if tools is None:
            raise
        apart = msgspec.json.decode(document[: tools.start] + b"[]" + document[tools.end :], type=_Apart)
        apart.tools = msgspec.Raw(tools.of(document))
        return apart


def _listed(tools: msgspec.Raw, service: str, refused: list[RefusedTool]) -> list[bytes | msgspec.Raw]:
    """Return the tools one by one, unread."""
    try:
        return [*msgspec.json.decode(tools, type=list[msgspec.Raw])]
    except _UNREADABLE as error:
        text = bytes(tools).strip()
        try:
            if text[:1] == b"[":
                return [piece.of(text) + _BLANKS for piece in elements(text)]
        except ValueError:
            pass
        refused.append(RefusedTool(ALL_TOOLS, service, _reason(error)))
        return []


def _name(raw: bytes | msgspec.Raw, index: int) -> str:
    try:
        name = msgspec.json.decode(raw, type=_Named).name
    except _UNREADABLE:
        name = _name_by_its_key(bytes(raw))
    return name[:128] or f"tool #{index + 1}"


def _name_by_its_key(tool: bytes) -> str:
    """Return the name of a tool that no parser takes; empty when that isn't to be had either."""
    try:
        name = member(tool, "name")
        return "" if name is None else msgspec.json.decode(name.of(tool), type=str)
    except (*_UNREADABLE, ValueError):
        return ""


def _reason(error: Exception) -> str:
    return one_line(str(error), _MOST_REASON)


# How often a registration looks whether ended leases may be judged: for three leases.
_LOOKS_A_LEASE, _MOST_LOOKS = 20, 60
# The number of the earliest start.
_FIRST_START = 1
# What the instances of a service share, in their table.
_SHARED = ("owner", "queue", "scale_to_zero", "current")


class Published(msgspec.Struct):
    """A publication of this process, with its place in the order of starts, and what the log told of a failure to register it again."""

    publication: Publication
    start: int
    told: object = None


class WorkerRegistration(WorkerStep, eq=False):
    """Keeps a worker's services in the registry until ``unregister``.

    Args:
        on_doubt: called when the registry has lost this worker, which may have lost its sessions, too.
        on_listed: called with a service, and why the registry has no lease of this worker for it; empty when it has one.
    """

    registry: Registry
    on_doubt: Callable[[], None]
    on_listed: Callable[[str, str], None]
    active: bool = True
    _published: dict[str, Published] = msgspec.field(default_factory=dict)
    _missing: dict[str, None] = msgspec.field(default_factory=dict)
    _returning: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def register(self, publication: Publication, origin: str = "") -> RegisterAnswer:
        """Publish a service for the first time; warn when instances of another origin have the same owner.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
            BrokerError: the server could not be asked.
        """
        try:
            answer = await self.registry.register(publication, self.instance, 0)
        except RegistrationRefused as refused:
            if not await self._sweep_holders(publication.service.id, refused):
                raise
            answer = await self.registry.register(publication, self.instance, 0)
            if not self.active:
                await self.registry.unregister([f"{publication.service.id}/{self.instance}"])
        self.on_listed(publication.service.id, "")
        self._published[publication.service.id] = Published(publication, answer.start)
        others = await self.registry.compare(publication.service.id, self.instance, origin) if origin else []
        if others:
            advice = "two programs? set TOOLBUS_OWNER, another one for each, or name their services differently"
            service, owner = publication.service.id, publication.owner
            telemetry.log.warning("service.other_program", service=service, owner=owner, here=origin, there=others[:3], advice=advice)
        return answer

    async def _sweep_holders(self, service: str, refused: RegistrationRefused) -> bool:
        """Sweep out the services that hold the refused names if all their workers were lost; return whether that was done.

        Where no other process runs, nobody else does. Workers that live although their leases have ended, because the server was away, get
        a lease to show it, as in each sweep.
        """
        try:
            members = await self.registry.dead_holders(refused.names, self.clock)
        except ReplyError:
            # A table of another type holds its names as long as it is there.
            members = []
        if not members:
            return False
        lease = self.settings.lease
        telemetry.log.warning("service.awaits_sweep", service=service, names=dict(refused.names), seconds=lease)
        for _ in range(_MOST_LOOKS):
            if not self.active:
                break
            if self.clock.trusted:
                await self.registry.drop(members, self.clock)
                return True
            await asyncio.sleep(lease / _LOOKS_A_LEASE)
        return False

    def digest(self, service: str) -> str:
        """Return the digest of the revision that this worker serves; empty when it serves none."""
        published = self._published.get(service)
        return "" if published is None else published.publication.digest

    async def step_back(self, service: str) -> None:
        """Let other instances' revisions of a service be the ones that agents see, although they started earlier.

        Raises:
            BrokerError: the server could not be asked.
        """
        published = self._published[service]
        published.start = (await self.registry.register(published.publication, self.instance, _FIRST_START)).start
        self.on_listed(service, "")

    async def unregister(self, *, died: bool = False) -> None:
        """Take every service of this instance out of the registry; it leaves, or ``died`` of a failure.

        Raises:
            BrokerError: the server could not be asked.
        """
        members = [f"{service}/{self.instance}" for service in self.streams]
        how: Literal["died", ""] = "died" if died else ""
        try:
            if members:
                await self.registry.unregister(members, how)
        except ReplyError as error:
            if error.code != "WRONGTYPE":
                raise
            # A key of one of them is of another type, which keeps no other one from leaving.
            await each_of(self.registry.unregister([member], how) for member in members)

    async def withdraw(self, service: str) -> None:
        """Take one service of this instance out of the registry.

        Raises:
            BrokerError: the server could not be asked; the service counts as published.
        """
        # Otherwise a beat that finds it missing would publish it again.
        published = self._published.pop(service, None)
        try:
            await self.registry.unregister([f"{service}/{self.instance}"])
        except BaseException:
            if published is not None:
                self._published.setdefault(service, published)
            raise

    async def register_again(self, services: list[str]) -> None:
        """Register services that the registry has lost; what goes wrong is logged. What is asked for until it is done is done with it."""
        self.on_doubt()
        # Each beat that misses a service asks for it.
        self._missing |= dict.fromkeys(services)
        async with self._returning:
            missing, self._missing = list(self._missing), {}
            for service in await self._register_again(missing) if missing else ():
                # Whoever missed it until now has seen the same loss; one that happened meanwhile, the next read or beat misses again.
                self._missing.pop(service, None)
                self.on_listed(service, "")

    async def _register_again(self, services: list[str]) -> list[str]:
        """Register services again; return those that are registered now."""
        registered: list[str] = []
        try:
            # While this worker was away the namespace may have come to a version that it does not speak.
            (await read_version(self.link, self.keys)).check()
        except BrokerUnavailable as error:
            telemetry.log.warning("service.register_failed", service=", ".join(services), error=str(error))
            return registered
        except BrokerError as error:
            telemetry.log.error("service.refused", service=", ".join(services), error=str(error))
            self.listener.on_failed(error)
            return registered
        for service in services:
            # The stream goes with its last worker, and a read that still waits on it reports a missing group.
            if not self.active:
                return registered
            published = self._published.get(service)
            if published is None:
                continue
            try:
                answer = await self.registry.register(published.publication, self.instance, published.start)
            except (RegistrationRefused, BrokerError) as error:
                self._tell(published, error)
                self._unlist(service, error)
            else:
                published.start, published.told = answer.start, None
                if service in self.streams:
                    self.streams[service].fence_is(answer.generation, answer.counter)
                registered.append(service)
                telemetry.log.warning("service.registered_again", service=service)
                if not self.active:
                    await self.registry.unregister([f"{service}/{self.instance}"])
        return registered

    def _tell(self, published: Published, error: RegistrationRefused | BrokerError) -> None:
        """Log once why a service could not register again: each beat asks, and the text of a refusal says for how long still."""
        names = error.names if isinstance(error, RegistrationRefused) else None
        told, published.told = published.told, names or str(error)
        if published.told != told:
            log, event = (telemetry.log.error, "service.refused") if names else (telemetry.log.warning, "service.register_failed")
            log(event, service=published.publication.service.id, error=str(error))

    def _unlist(self, service: str, error: ToolbusError) -> None:
        """Take note of why a service is still missing; one of whose registration only a part was lost has its lease."""
        stream = self.streams.get(service)
        if stream is not None and stream.unlisted:
            self.on_listed(service, str(error))

    async def register_missing(self) -> None:
        """Register the services again of whose registration something was lost; a beat looks at the lease alone.

        Raises:
            BrokerError: the server could not be asked.
        """
        published = [stream for stream in list(self.streams.values()) if stream.service in self._published]
        missing = [stream.service for stream in published if not await self._is_whole(stream)]
        if missing and self.active:
            await self.register_again(missing)

    async def _is_whole(self, stream: RequestStream) -> bool:
        """Return whether the server has everything that a registration writes.

        A single name that is missing was freed for another owner, so only all of them together count as lost.
        """
        keys, published = self.keys, self._published.get(stream.service)
        if published is None:
            # It was withdrawn meanwhile.
            return True
        digest = published.publication.digest
        execute = self.link.execute
        listed, own, started, named, fence = await asyncio.gather(
            execute("HGET", keys.services, stream.service, repeatable=True),
            execute("HMGET", keys.instances(stream.service), f"i:{self.instance}", f"d:{digest}", f"n:{digest}", *_SHARED, repeatable=True),
            execute("HGET", keys.meta, "start", repeatable=True),
            execute("EXISTS", keys.names, stream.key, repeatable=True),
            execute("HMGET", stream.fence, "generation", f"c:{self.instance}", f"l:{self.instance}", repeatable=True),
        )
        try:
            read_record(listed or b"")
            # Later starts count from here.
            integer(started, least=published.start)
        except (DescriptorError, EnvelopeError):
            return False
        if named != 2 or None in own or None in fence or own[0] != f"{published.start}:{digest}".encode():
            return False
        # Where another revision is the current one, its workers look.
        return bool(own[-1] != digest.encode() or listed == b"+" + own[1])
