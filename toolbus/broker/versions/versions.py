"""An operator's view of the versions in a namespace: who speaks which, and the way to the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec

from toolbus.broker.keys import Keys
from toolbus.broker.protocols.registry import ItemChange
from toolbus.broker.reading import shown, text
from toolbus.broker.registry.registry import RedisRegistry
from toolbus.broker.transport.replies import scan_hash
from toolbus.broker.transport.transport import Transport
from toolbus.broker.versions.migrations import MIGRATIONS, Migration
from toolbus.broker.versions.namespace import NamespaceVersion, read_version
from toolbus.broker.versions.spoken import Versions, speaks, spoken
from toolbus.envelope import VERSION
from toolbus.results import BrokerError, EnvelopeError, ToolbusError

MOST_BATCH = 1_000
"""Most documents that are written at once."""

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


_spoken = msgspec.json.Decoder(_Spoken)


class RedisVersions:
    """The versions of a namespace on a server."""

    def __init__(self, link: Transport, keys: Keys, registry: RedisRegistry) -> None:
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
            raise BrokerError(f"{first.key} can't be converted{more}: {first.problem}; put it anew or `toolbus rm` it, and run this again")

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
        return _spoken.decode(publication).versions
    except (msgspec.DecodeError, RecursionError, ValueError):
        # Other processes refuse it, whatever it speaks.
        return None


def _converted(migration: Migration, key: str, document: bytes) -> Change | None:
    try:
        made = migration.convert(key, document)
    except (ToolbusError, ValueError, RecursionError) as error:
        return Change(migration, key, document, document, shown(str(error)))
    return None if made is None or made == document else Change(migration, key, document, made)
