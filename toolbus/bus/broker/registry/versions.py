"""Keep releases with different versions of the protocol together, and change stored forms from one to the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec

from toolbus.bus.broker.protocols import ItemChange
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import integer, shown, skip, skipping, text
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import OLDEST, VERSION
from toolbus.bus.values.results import BrokerError, DescriptorError, EnvelopeError, ToolbusError


class Migration(NamedTuple):
    """A change of stored documents.

    A release reads both forms as long as it speaks the version before. Requests, replies, sessions and everything else that has a TTL are
    not converted: they are gone before the older form is no longer read.

    Attributes:
        version: the version that writes the new form.
        name: short, for people.
        about: what changes, in one sentence.
        prefix: the beginning of the keys of the static documents that may have the older form, such as ``group/``.
        convert: returns the new form of a document with this key, or None when it has it already. It raises a ``ToolbusError`` or a
            ``ValueError`` for a document that is neither.
    """

    version: int
    name: str
    about: str
    prefix: str
    convert: Callable[[str, bytes], bytes | None]


MIGRATIONS: list[Migration] = []
"""All migrations, in the order in which they are done. No release has changed a stored form so far."""


FIRST = 1
"""The version of sides that do not say which ones they speak."""

Versions = tuple[int, int]
"""The oldest and the newest version that a side speaks."""

OURS: Versions = (OLDEST, VERSION)
"""The versions of this release."""


def spoken(versions: Versions | None) -> str:
    """Return in words which versions a side speaks; a side that does not say speaks the first one."""
    oldest, newest = versions or (FIRST, FIRST)
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def speaks(versions: Versions | None, version: int) -> bool:
    """Return whether a side speaks a version."""
    oldest, newest = versions or (FIRST, FIRST)
    return oldest <= version <= newest


def check_versions(versions: Versions | None) -> None:
    """Refuse a service whose workers have no version of the protocol in common with this process.

    Raises:
        DescriptorError: see there; the message says which side is to be upgraded.
    """
    oldest, newest = versions or (FIRST, FIRST)
    if not FIRST <= oldest <= newest:
        raise DescriptorError(f"{oldest} to {newest} are no versions of the protocol", path="$.versions")
    if oldest > VERSION or newest < OLDEST:
        behind = "this process" if oldest > VERSION else "the workers"
        raise DescriptorError(
            f"its workers speak {spoken(versions)} of the protocol, and this process {spoken(OURS)}: upgrade {behind}", path="$.versions"
        )


_MOST = 1_000_000


class NamespaceVersion(NamedTuple):
    """The version of a namespace; ``raising`` is the one to which an operator raises it now, or 0."""

    namespace: str
    written: int = FIRST
    raising: int = 0

    def check(self) -> None:
        """Refuse this process a namespace of a version that it does not speak, or soon will not.

        Raises:
            BrokerError: see there; the message says what is to be upgraded.
        """
        needed = max(self.written, self.raising)
        if needed > VERSION:
            state = "is being raised to" if needed > self.written else "is of"
            raise BrokerError(f"{self} {state} version {needed} of the protocol, and this process speaks {spoken(OURS)}: upgrade it")
        if self.written < OLDEST:
            raise BrokerError(
                f"{self} is of version {self.written} of the protocol, and this process speaks {spoken(OURS)}: "
                f"run `toolbus operate migrate` of a release that speaks versions {self.written} and {OLDEST} first"
            )

    def __str__(self) -> str:
        return f"the namespace {self.namespace!r}"


async def read_version(link: Link, keys: Keys) -> NamespaceVersion:
    """Return the version of a namespace; one without a mark is of the first.

    Raises:
        BrokerError: the server could not be asked.
    """
    try:
        found = await link.execute("HMGET", keys.format, "version", "raising", repeatable=True)
    except ReplyError as error:
        if error.code != "WRONGTYPE":
            raise
        skip(keys.format, "it is no hash")
        found = []
    fields = dict(zip(("version", "raising"), found, strict=False))
    written = _read(keys, "version", fields.get("version")) or FIRST
    raising = _read(keys, "raising", fields.get("raising"))
    return NamespaceVersion(keys.namespace, written, raising if raising > written else 0)


def _read(keys: Keys, field: str, value: bytes | None) -> int:
    if value is None:
        return 0
    with skipping(keys.format, field=field):
        return integer(value, least=FIRST, most=_MOST)
    return 0


_MOST_BYTES = 1_048_576
# How often everything is looked at again, because others have changed documents meanwhile.
_MOST_PASSES = 10
_MOST_NAMED = 5


class SpokenBy(NamedTuple):
    """The versions that one instance of a service speaks; None when it does not say, and speaks the first one."""

    service: str
    instance: str
    versions: Versions | None


class Change(NamedTuple):
    """A document that has an older form; ``problem`` when it can't be converted, ``document`` its new form otherwise."""

    migration: Migration
    key: str
    before: bytes
    document: bytes
    problem: str = ""


class _Spoken(msgspec.Struct):
    versions: Versions | None = None


class NamespaceVersions:
    """The versions of a namespace on a server."""

    def __init__(self, link: Link, keys: Keys, registry: Registry) -> None:
        self._link = link
        self._keys = keys
        self._registry = registry

    async def read(self) -> NamespaceVersion:
        """Return the version that the namespace is of.

        Raises:
            BrokerError: the server could not be asked.
        """
        return await read_version(self._link, self._keys)

    async def workers(self) -> list[SpokenBy]:
        """Return the versions that each registered instance speaks, sorted.

        Raises:
            BrokerError: the server could not be asked.
        """
        found: list[SpokenBy] = []
        async for name, _ in scan_hash(self._link, self._keys.services):
            try:
                service = text(name)
            except EnvelopeError:
                # Whoever reads the registry tells of it.
                continue
            instances: dict[str, bytes] = {}
            publications: dict[bytes, Versions | None] = {}
            async for field, value in scan_hash(self._link, self._keys.instances(service)):
                if field[:2] == b"i:":
                    instances[shown(field[2:])] = value.partition(b":")[2]
                elif field[:2] == b"d:":
                    publications[field[2:]] = _said(value)
            found += [SpokenBy(service, each, publications.get(digest)) for each, digest in instances.items()]
        return sorted(set(found), key=lambda each: each[:2])

    async def changes(self) -> AsyncIterator[Change]:
        """Yield each document that has an older form, in bounded parts.

        Raises:
            BrokerError: the server could not be asked.
        """
        known = [each for each in MIGRATIONS if each.version <= VERSION]
        if not known:
            return
        for table in self._keys.tables():
            async for field, document in scan_hash(self._link, table):
                try:
                    key = field.decode()
                except UnicodeDecodeError:
                    # Agents tell of it where they read it.
                    continue
                # What stands in another table than its own is used by nobody.
                for migration in known if self._keys.table(key) == table else ():
                    if key.startswith(migration.prefix):
                        made = _converted(migration, key, document)
                        if made is not None:
                            yield made
                            break

    async def migrate(self, batch: int, tell: Callable[[int], None]) -> NamespaceVersion:
        """Convert what has an older form, and raise the namespace to this release's version; what is done is not done again.

        It may be stopped at any time and run again. Workers and agents go on meanwhile. ``tell`` is called after each batch with the
        number of documents converted so far.

        Raises:
            BrokerError: the namespace is of a version that this release does not speak, a worker does not speak the new one, documents
                can't be converted, or others change them all the time; the message says what to do.
        """
        before = await self.read()
        before.check()
        raises = before.written < VERSION
        if raises:
            await self._must_all_speak(before)
            await self._link.execute("HSET", self._keys.format, "raising", VERSION, repeatable=True)
            try:
                # A worker that registered meanwhile looked for the mark before it was there.
                await self._must_all_speak(before)
            except BrokerError:
                if not before.raising:
                    await self._link.execute("HDEL", self._keys.format, "raising", repeatable=True)
                raise
        await self._convert_all(batch, tell)
        if raises:
            # Another operator may have taken the mark back meanwhile.
            await self._must_all_speak(before)
            await self._link.execute("HSET", self._keys.format, "version", VERSION, repeatable=True)
            await self._link.execute("HDEL", self._keys.format, "raising", repeatable=True)
        return await self.read()

    async def behind(self) -> list[SpokenBy]:
        """Return the instances that do not speak this release's newest version.

        Raises:
            BrokerError: the server could not be asked.
        """
        return [each for each in await self.workers() if not speaks(each.versions, VERSION)]

    async def _must_all_speak(self, namespace: NamespaceVersion) -> None:
        behind = await self.behind()
        if behind:
            named = ", ".join(f"{each.service}/{each.instance} ({spoken(each.versions)})" for each in behind[:_MOST_NAMED])
            more = f" and {len(behind) - _MOST_NAMED} more" if len(behind) > _MOST_NAMED else ""
            raise BrokerError(
                f"{namespace} stays at version {namespace.written}: {named}{more} can't read version {VERSION}; upgrade these workers, "
                "or wait a lease if they have crashed, and run this again"
            )

    async def _convert_all(self, batch: int, tell: Callable[[int], None]) -> None:
        done = 0
        for _ in range(_MOST_PASSES):
            again, failed, first = False, 0, None
            part, size = list[Change](), 0
            async for change in self.changes():
                if change.problem:
                    failed, first = failed + 1, first or change
                    continue
                part.append(change)
                size += len(change.document)
                if len(part) >= batch or size >= _MOST_BYTES:
                    done, again = done + await self._write(part), True
                    tell(done)
                    part, size = [], 0
            if part:
                done, again = done + await self._write(part), True
                tell(done)
            if not again:
                break
        else:
            raise BrokerError(f"documents are written in an older form all the time ({done} converted so far); upgrade who writes them")
        if first is not None:
            more = f" (and {failed - 1} more)" if failed > 1 else ""
            raise BrokerError(
                f"{first.key} can't be converted{more}: {first.problem}; put it anew or `toolbus operate items rm` it, and run this again"
            )

    async def _write(self, changes: list[Change]) -> int:
        """Write converted documents; one that somebody has changed meanwhile is looked at again in the next pass."""
        if not await self._registry.replace_items([ItemChange(each.key, each.before, each.document) for each in changes]):
            return len(changes)
        written = 0
        for each in changes:
            written += not await self._registry.replace_items([ItemChange(each.key, each.before, each.document)])
        return written


def _said(publication: bytes) -> Versions | None:
    try:
        return msgspec.json.decode(publication, type=_Spoken).versions
    except DECODE_ERRORS:
        # Other processes refuse it, whatever it speaks.
        return None


def _converted(migration: Migration, key: str, document: bytes) -> Change | None:
    try:
        made = migration.convert(key, document)
    except (ToolbusError, ValueError, RecursionError) as error:
        return Change(migration, key, document, document, shown(str(error)))
    return None if made is None or made == document else Change(migration, key, document, made)
